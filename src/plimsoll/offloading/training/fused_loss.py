"""Computes a language model's logits and loss in chunks: one chunk's logits exist at a time."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import textwrap
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from plimsoll.base.errors import InputError
from plimsoll.offloading.training.cross_entropy import CHUNKS, sum_of_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

_IGNORED = -100
_SLICED = "slice_logits_to_keep(hidden_states, logits_to_keep)"
"""How newer versions of Transformers drop tokens whose logits a caller does not want."""


def fuse_loss(model: torch.nn.Module) -> None:
    """Makes a causal language model of Transformers compute its logits and loss in eight chunks.

    This applies to calls with `labels`, without `logits_to_keep` and with at most one positional
    argument, while autograd records gradients. All other calls are unchanged. For each chunk of
    tokens the model computes the logits, the loss and the gradients of the loss, and then drops the
    logits. So the output has no `logits`. The loss and the gradients differ from the usual ones by
    rounding.

    >>> plimsoll.fuse_loss(model)  # doctest: +SKIP

    Args:
        model: The model, or a wrapper such as PEFT's. No other library may have replaced its
            `forward` yet.

    Raises:
        InputError: If the model is no causal language model of Transformers with a linear head, or
            if its `forward` was replaced. Also if the model does more with its logits than
            compute the loss from them, for example if it caps or scales them.
    """
    inner, head = _language_model(model)
    forward = inner.forward

    @functools.wraps(forward)
    def fused(*arguments: Any, labels: torch.Tensor | None = None, **named: Any) -> Any:
        is_plain = len(arguments) <= 1 and not named.get("logits_to_keep")
        if labels is None or not torch.is_grad_enabled() or not is_plain:
            return forward(*arguments, labels=labels, **named)
        count, shifted = named.pop("num_items_in_batch", None), named.pop("shift_labels", None)
        named.pop("logits_to_keep", None)
        outputs = inner.base_model(*arguments, **{**named, "return_dict": True})
        if shifted is None:
            shifted = torch.nn.functional.pad(labels, (0, 1), value=_IGNORED)[..., 1:]
        loss = _loss(outputs.last_hidden_state, head, shifted, count)
        return _output(outputs, loss)

    inner.forward = fused


def _output(outputs: Any, loss: torch.Tensor) -> Any:
    from transformers.modeling_outputs import CausalLMOutputWithPast

    fields = {field.name for field in dataclasses.fields(CausalLMOutputWithPast)}
    kept = fields & {"past_key_values", "cache", "hidden_states", "attentions"}
    return CausalLMOutputWithPast(loss=loss, **{name: outputs.get(name) for name in kept})


def _language_model(model: torch.nn.Module) -> tuple[Any, torch.nn.Linear]:
    for module in model.modules():
        if not _says_it_has_a_loss(module):
            continue
        head = module.get_output_embeddings()
        if type(head) is not torch.nn.Linear:
            continue
        name = type(module).__name__
        if "forward" in vars(module):
            raise InputError(f"something wraps {name}'s forward; fuse its loss before that")
        if not _is_plain(type(module), head is module.lm_head):
            raise InputError(f"{name} does more with its logits than to take their loss")
        return module, head
    raise InputError(
        f"{type(model).__name__} is no causal language model of Transformers' with a linear head"
    )


def _says_it_has_a_loss(module: Any) -> bool:
    loss = getattr(type(module), "loss_function", None)
    if loss is None or not hasattr(module, "lm_head"):
        return False
    return getattr(module.loss_function, "__name__", "") == "ForCausalLMLoss"


def _is_plain(kind: Any, has_usual_head: bool) -> bool:
    """Returns whether a model's `forward` only computes hidden states, logits and their loss.

    The function reads the source of `forward`.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind.forward)))
    except (OSError, TypeError, SyntaxError):
        return False
    made = [ast.unparse(each) for each in _made(tree, "logits")]
    losses = [ast.unparse(each) for each in _made(tree, "loss")]
    hidden = [ast.unparse(each) for each in _made(tree, "hidden_states")]
    if hidden[1:] == [_SLICED]:
        del hidden[1]
    return (
        has_usual_head
        and len(made) == 1
        and made[0].startswith("self.lm_head(hidden_states")
        and all(each == "None" or each.startswith("self.loss_function(") for each in losses)
        and len(hidden) == 1
        and hidden[0].endswith((".last_hidden_state", "[0]"))
    )


def _made(tree: ast.AST, name: str) -> Iterator[ast.expr]:
    """Yields the expressions that a function assigns to a variable."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AugAssign) and ast.unparse(node.target) == name:
            yield node.value
        if isinstance(node, ast.Assign) and name in map(ast.unparse, node.targets):
            yield node.value


def _loss(
    hidden: torch.Tensor, head: torch.nn.Linear, target: torch.Tensor, count: Any
) -> torch.Tensor:
    """Returns the mean loss for hidden states [batch, tokens, size] and classes [batch, tokens]."""
    classes = target.reshape(-1).to(hidden.device)
    rows = hidden.reshape(-1, hidden.shape[-1])
    total: torch.Tensor = _HeadAndLoss.apply(rows, head.weight, head.bias, classes)
    if count is None:
        count = (classes != _IGNORED).sum()
    return total / (count.to(total.device) if isinstance(count, torch.Tensor) else count)


class _HeadAndLoss(torch.autograd.Function):  # type: ignore[misc]
    """The loss summed over rows; the forward pass also computes all gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        classes: torch.Tensor,
    ) -> torch.Tensor:
        needs = ctx.needs_input_grad
        total = torch.zeros((), dtype=torch.float32, device=rows.device)
        of_rows = torch.empty_like(rows) if needs[0] else None
        of_weight = torch.zeros_like(weight) if needs[1] else None
        of_bias = torch.zeros_like(bias) if bias is not None and needs[2] else None
        first = 0
        for part, targets in zip(rows.chunk(CHUNKS), classes.chunk(CHUNKS), strict=True):
            logits = torch.nn.functional.linear(part, weight, bias)
            with torch.enable_grad():
                logits.requires_grad_()
                loss = sum_of_rows(logits, targets, None, _IGNORED, 0.0)
            (of_logits,) = torch.autograd.grad(loss, logits)
            total += loss.detach()
            del logits, loss
            if of_rows is not None:
                of_rows[first : first + len(part)] = of_logits @ weight.to(of_logits.dtype)
            if of_weight is not None:
                _add_product(of_weight, of_logits.t(), part.to(of_logits.dtype))
            if of_bias is not None:
                of_bias += of_logits.sum(0)
            del of_logits
            first += len(part)
        ctx.save_for_backward(of_rows, of_weight, of_bias)
        return total

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (gradient,) = gradients
        is_last = not torch._C._autograd._get_current_graph_task_keep_graph()
        found = [
            saved if saved is None else saved.mul_(gradient) if is_last else saved * gradient
            for saved in ctx.saved_tensors
        ]
        return (*found, None)


def _add_product(to: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    if to.dtype == left.dtype:
        to.addmm_(left, right)
    else:
        to += left @ right
