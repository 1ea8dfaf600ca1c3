"""Tests the functions that reduce memory in training: losses and gradients must stay the same."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll import InputError

torch = pytest.importorskip("torch")

import plimsoll  # noqa: E402
from plimsoll.offloading.training.recompute import expanded  # noqa: E402


class TestCrossEntropy:
    """Compares `plimsoll.cross_entropy` with PyTorch's."""

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"label_smoothing": 0.1},
            {"ignore_index": 3},
            {"weight": torch.linspace(0.1, 2.0, 17)},
            {"weight": torch.linspace(0.1, 2.0, 17), "ignore_index": 5},
            {"reduction": "sum"},
            {"reduction": "none"},
        ],
    )
    @pytest.mark.parametrize("rows", [1, 63, 64, 100, 1000])
    def test_values_and_gradients_are_those_of_pytorch(
        self, rows: int, options: dict[str, Any]
    ) -> None:
        torch.manual_seed(rows)
        logits = torch.randn(rows, 17, requires_grad=True)
        target = torch.randint(0, 17, (rows,))
        expected = torch.nn.functional.cross_entropy(logits, target, **options)
        (gradient,) = torch.autograd.grad(expected.sum(), logits)
        found = plimsoll.cross_entropy(logits, target, **options)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.autograd.grad(found.sum(), logits)[0], gradient)

    def test_half_precision_logits_have_half_precision_gradients(self) -> None:
        logits = torch.randn(640, 33, dtype=torch.bfloat16, requires_grad=True)
        target = torch.randint(0, 33, (640,))
        (expected,) = torch.autograd.grad(
            torch.nn.functional.cross_entropy(logits.float(), target), logits
        )
        found = plimsoll.cross_entropy(logits, target)
        assert found.dtype == torch.float32
        (gradient,) = torch.autograd.grad(found, logits)
        assert gradient.dtype == torch.bfloat16
        torch.testing.assert_close(gradient, expected, rtol=0.02, atol=1e-5)

    def test_a_loss_is_counted_in_single_precision_whatever_the_default_type(self) -> None:
        """Sets bfloat16 as PyTorch's default type, because some scripts do so."""
        logits = torch.randn(200, 50).requires_grad_()
        target = torch.randint(0, 50, (200,))
        expected = torch.nn.functional.cross_entropy(logits, target)
        torch.set_default_dtype(torch.bfloat16)
        try:
            found = plimsoll.cross_entropy(logits, target)
        finally:
            torch.set_default_dtype(torch.float32)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected)

    def test_a_second_backward_pass_gives_the_same_gradients(self) -> None:
        logits = torch.randn(80, 5, requires_grad=True)
        loss = plimsoll.cross_entropy(logits, torch.randint(0, 5, (80,)))
        (first,) = torch.autograd.grad(loss, logits, torch.tensor(3.0), retain_graph=True)
        (second,) = torch.autograd.grad(loss, logits, torch.tensor(3.0))
        torch.testing.assert_close(first, second)

    @pytest.mark.parametrize("shape", [(64, 5, 7), (64,)])
    def test_other_shapes_are_pytorchs_own(self, shape: tuple[int, ...]) -> None:
        logits = torch.randn(shape, requires_grad=True)
        target = torch.zeros(shape[:1] + shape[2:] if len(shape) > 1 else (), dtype=torch.long)
        expected = torch.nn.functional.cross_entropy(logits, target)
        assert torch.equal(plimsoll.cross_entropy(logits, target), expected)


class Net(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Blocks that are hard to recompute: they draw random numbers and keep batch statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(
                torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.GELU(),
                torch.nn.Dropout(0.5),
            )
            for _ in range(3)
        )  # fmt: skip
        self.head = torch.nn.Linear(8, 1)

    def forward(self, x: Any) -> Any:
        """Takes [rows, 8]. Returns a mean."""
        for block in self.blocks:
            x = block(x)
        return self.head(x).mean()


def after_steps(*names: str) -> tuple[list[Any], dict[str, Any]]:
    """Returns the losses of a few steps, and the model's state after them."""
    torch.manual_seed(0)
    net = Net()
    if names:
        plimsoll.recompute(net, *names)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        loss = net(torch.randn(16, 8))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses, net.state_dict()


class TestRecompute:
    """Tests of `plimsoll.recompute`."""

    @pytest.mark.parametrize("names", [["blocks.0-2"], ["blocks.1"], ["blocks.0.0", "head"]])
    def test_losses_parameters_and_statistics_stay_what_they_were(self, names: list[str]) -> None:
        losses, state = after_steps()
        same_losses, same_state = after_steps(*names)
        torch.testing.assert_close(same_losses, losses)
        assert same_state.keys() == state.keys()
        for name, value in state.items():
            torch.testing.assert_close(same_state[name], value)

    def test_a_module_keeps_its_input_alone(self) -> None:
        saved: list[int] = []
        block = torch.nn.Sequential(torch.nn.Linear(64, 640), torch.nn.ReLU())
        net = torch.nn.Sequential(block, torch.nn.Linear(640, 1))
        plimsoll.recompute(net, "0")
        x = torch.randn(4, 64, requires_grad=True)

        def note(tensor: Any) -> Any:
            saved.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            net(x)
        # The last layer saves its input, the result of the recomputed block. Nothing else of this
        # size is saved.
        assert 4 * 640 in saved
        assert saved.count(4 * 640) == 1

    def test_without_gradients_the_module_is_called_once_as_before(self) -> None:
        net = Net().eval()
        plimsoll.recompute(net, "blocks.0-2")
        with torch.no_grad():
            assert not net(torch.randn(4, 8)).requires_grad

    def test_a_layer_fills_no_cache_of_keys_and_values(self) -> None:
        class Layer(torch.nn.Module):  # type: ignore[misc,name-defined]
            def forward(self, x: Any, past_key_values: Any = None) -> Any:
                if past_key_values is not None:
                    past_key_values.append(x)
                return x.exp()

        net = torch.nn.ModuleDict({"layer": Layer()})
        plimsoll.recompute(net, "layer")
        cache: list[Any] = []
        net["layer"](torch.ones(2, requires_grad=True), past_key_values=cache).sum().backward()
        assert cache == []

    def test_a_cache_of_transformers_is_known_under_any_name(self) -> None:
        transformers = pytest.importorskip("transformers")

        class Layer(torch.nn.Module):  # type: ignore[misc,name-defined]
            def forward(self, x: Any, cache: Any = None, scale: Any = None) -> Any:
                if cache is not None:
                    cache.update(x, x, 0)
                return x.exp() * scale

        net = torch.nn.ModuleDict({"layer": Layer()})
        plimsoll.recompute(net, "layer")
        cache = transformers.DynamicCache()
        x = torch.ones(1, 1, 2, 2, requires_grad=True)
        net["layer"](x, cache=cache, scale=2.0).sum().backward()
        assert cache.get_seq_length() == 0
        assert x.grad is not None

    def test_names_that_are_not_there_and_names_within_others_are_refused(self) -> None:
        with pytest.raises(InputError, match=r"Net has no module 'layers\.0'; it has blocks, head"):
            plimsoll.recompute(Net(), "layers.0")
        with pytest.raises(InputError, match=r"blocks\.0\.1 is in blocks\.0"):
            plimsoll.recompute(Net(), "blocks.0-1", "blocks.0.1")

    def test_ranges_mean_each_of_them(self) -> None:
        assert list(expanded("a.0-2.b.8-9")) == [
            f"a.{first}.b.{second}" for first in range(3) for second in (8, 9)
        ]
        assert list(expanded("head")) == ["head"]


class TestSplitBatch:
    """Tests of `plimsoll.split_batch`."""

    def test_gradients_of_the_parts_add_up_to_those_of_the_whole(self) -> None:
        torch.manual_seed(0)
        layer = torch.nn.Linear(4, 3)
        x, y = torch.randn(12, 4), torch.randint(0, 3, (12,))
        torch.nn.functional.cross_entropy(layer(x), y).backward()
        expected = layer.weight.grad.clone()
        layer.zero_grad()
        for part, target in plimsoll.split_batch(4, x, y):
            assert part.shape == (3, 4)
            (torch.nn.functional.cross_entropy(layer(part), target) / 4).backward()
        torch.testing.assert_close(layer.weight.grad, expected)

    def test_mappings_and_sequences_are_split_within(self) -> None:
        batch = {"x": torch.arange(6), "pair": [torch.arange(6), "name"], "scale": torch.tensor(2)}
        first, second = plimsoll.split_batch(2, batch)
        assert first["x"].tolist() == [0, 1, 2]
        assert second["pair"][0].tolist() == [3, 4, 5]
        assert second["pair"][1] == "name"
        assert second["scale"].item() == 2

    def test_parts_are_views(self) -> None:
        x = torch.zeros(4)
        next(iter(plimsoll.split_batch(2, x)))[:] = 1
        assert x.tolist() == [1, 1, 0, 0]

    @pytest.mark.parametrize(
        ("parts", "batch", "said"),
        [
            (3, [torch.zeros(4)], "4 rows do not divide into 3 parts"),
            (2, [torch.zeros(4), torch.zeros(6)], r"not of \[4, 6\]"),
            (2, [], r"not of \[\]"),
            (0, [torch.zeros(4)], "into 0 parts"),
        ],
    )
    def test_what_cannot_be_split_is_refused(self, parts: int, batch: list[Any], said: str) -> None:
        with pytest.raises(InputError, match=said):
            list(plimsoll.split_batch(parts, *batch))


def language_model(kind: str, **settings: Any) -> Any:
    """Returns a tiny model of Transformers."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    if kind != "GPT2":
        sizes |= {"num_key_value_heads": 2, "head_dim": 8}
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **settings})
    suffix = "LMHeadModel" if kind == "GPT2" else "ForCausalLM"
    return getattr(transformers, f"{kind}{suffix}")(config).train(False)


class TestFuseLoss:
    """Tests of `plimsoll.fuse_loss`."""

    @pytest.mark.parametrize("kind", ["Llama", "GPT2", "Qwen3", "Mistral"])
    @pytest.mark.parametrize("given", [{}, {"num_items_in_batch": 7}])
    def test_the_loss_and_gradients_are_those_of_the_model(
        self, kind: str, given: dict[str, Any]
    ) -> None:
        model = language_model(kind)
        ids = torch.randint(0, 61, (3, 50))
        labels = ids.masked_fill(torch.rand(3, 50) < 0.2, -100)
        expected = model(input_ids=ids, labels=labels, **given).loss
        expected.backward()
        wanted = {name: each.grad for name, each in model.named_parameters()}
        model.zero_grad()
        plimsoll.fuse_loss(model)
        found = model(input_ids=ids, labels=labels, **given)
        assert found.logits is None
        torch.testing.assert_close(found.loss, expected)
        found.loss.backward()
        for name, each in model.named_parameters():
            torch.testing.assert_close(each.grad, wanted[name])

    def test_logits_are_there_where_no_loss_is_learnt_from(self) -> None:
        model = language_model("Llama")
        plimsoll.fuse_loss(model)
        ids = torch.randint(0, 61, (1, 9))
        assert model(input_ids=ids).logits.shape == (1, 9, 61)
        with torch.no_grad():
            assert model(input_ids=ids, labels=ids).logits.shape == (1, 9, 61)

    def test_a_head_that_does_not_learn_keeps_no_gradient(self) -> None:
        model = language_model("Llama", tie_word_embeddings=False)
        model.lm_head.requires_grad_(False)
        plimsoll.fuse_loss(model)
        ids = torch.randint(0, 61, (2, 40))
        model(input_ids=ids, labels=ids).loss.backward()
        assert model.lm_head.weight.grad is None
        assert model.model.embed_tokens.weight.grad is not None

    def test_autocast_counts_in_half_precision(self) -> None:
        model = language_model("Llama")
        ids = torch.randint(0, 61, (2, 40))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expected = model(input_ids=ids, labels=ids).loss
            plimsoll.fuse_loss(model)
            found = model(input_ids=ids, labels=ids).loss
        torch.testing.assert_close(found, expected, rtol=0.01, atol=0)
        found.backward()
        assert model.lm_head.weight.grad.dtype == torch.float32

    def test_newer_versions_drop_tokens_before_the_head(self) -> None:
        """Gives a model the `forward` that Transformers 5.24 has."""

        def slice_logits_to_keep(hidden_states: Any, logits_to_keep: int) -> Any:
            return hidden_states[:, -logits_to_keep or None :]

        def forward(
            self: Any, input_ids: Any, labels: Any = None, logits_to_keep: int = 0, **kwargs: Any
        ) -> Any:
            outputs = self.model(input_ids=input_ids, **kwargs)
            hidden_states = outputs.last_hidden_state
            hidden_states = slice_logits_to_keep(hidden_states, logits_to_keep)
            logits = self.lm_head(hidden_states)
            loss = None
            if labels is not None:
                loss = self.loss_function(logits, labels, self.config.vocab_size, **kwargs)
            return type(outputs)(loss=loss, logits=logits)

        model = language_model("Llama")
        model.__class__ = type("Newer", (type(model),), {"forward": forward})
        ids = torch.randint(0, 61, (2, 40))
        expected = language_model("Llama")
        expected.load_state_dict(model.state_dict())
        plimsoll.fuse_loss(model)
        found = model(input_ids=ids, labels=ids)
        assert found.logits is None
        torch.testing.assert_close(found.loss, expected(input_ids=ids, labels=ids).loss)

    def test_models_that_do_more_with_their_logits_are_refused(self) -> None:
        for model in (language_model("Gemma2"), language_model("Mixtral")):
            with pytest.raises(InputError, match="does more with its logits"):
                plimsoll.fuse_loss(model)
        with pytest.raises(InputError, match="is no causal language model"):
            plimsoll.fuse_loss(torch.nn.Linear(2, 2))
        wrapped = language_model("Llama")
        plimsoll.fuse_loss(wrapped)
        with pytest.raises(InputError, match="something wraps"):
            plimsoll.fuse_loss(wrapped)
