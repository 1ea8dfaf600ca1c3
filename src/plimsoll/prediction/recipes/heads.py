"""Finds a model's task, and the longest input it allows, from its transformers configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plimsoll.base.errors import InputError

if TYPE_CHECKING:
    from plimsoll.prediction.recipes.configuration import Configuration

_MAPPINGS = {
    "Seq2SeqLM": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "SpeechSeq2Seq": "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "ImageTextToText": "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MaskedLM": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "CausalLM": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "ImageClassification": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
}
"""The `AutoModelFor...` classes in order of preference.

Each value is the name of a table in transformers' `modeling_auto`. The table lists the model
classes that the `AutoModelFor...` class can make.
"""
_ENCODERS = ("MaskedLM", "ImageClassification")
_ROTARY = ("rope_parameters", "rope_theta", "rope_scaling")


def head_of(configuration: Configuration) -> str:
    """Returns the `AutoModelFor...` class that makes a model with a loss, such as "CausalLM".

    config.json can name the model's own class, for example "LlamaForCausalLM". Then the result is
    the `AutoModelFor...` class that makes it. Otherwise the result is the first class of
    `_MAPPINGS` that supports the model's type.

    Raises:
        InputError: If there is no such class.
    """
    from transformers.models.auto import modeling_auto

    model_type = configuration.values["model_type"]
    named = next(iter(configuration.values.get("architectures") or ()), None)
    heads = {}
    for head, mapping in _MAPPINGS.items():
        classes = getattr(modeling_auto, mapping).get(model_type)
        if classes is not None:
            heads[head] = (classes,) if isinstance(classes, str) else classes
    for head, classes in heads.items():
        if named in classes:
            return head
    if named is not None and "For" in named and not named.endswith("ForPreTraining"):
        raise InputError(
            f"{configuration.name}: is a {named}, which no recipe knows; choose what to make of "
            f"{model_type} with -- --head {next(iter(heads), 'CausalLM')}"
        )
    if not heads:
        raise InputError(
            f"{configuration.name}: no recipe knows models of the type {model_type}; they know "
            "language models, also with images or speech, and classifiers of images"
        )
    return next(iter(heads))


def can_write(head: str) -> bool:
    """Returns whether models with this head generate text."""
    return head not in _ENCODERS


def reads_text(head: str) -> bool:
    """Returns whether models with this head read text, and not only images or sound."""
    return head not in ("ImageClassification", "SpeechSeq2Seq")


def most_tokens(configuration: Configuration) -> tuple[int | None, bool]:
    """Returns the longest input that a model was made for, and whether longer inputs fail.

    The length is in tokens, or None if unknown. Longer inputs work only if the model has rotary
    position embeddings.

    Raises:
        InputError: If transformers cannot read the configuration.
    """
    config = _read(configuration).get_text_config(decoder=True)
    for name in ("max_target_positions", "max_position_embeddings"):
        most = getattr(config, name, None)
        if isinstance(most, int) and most > 0:
            return most, not any(getattr(config, each, None) for each in _ROTARY)
    return None, False


def _read(configuration: Configuration) -> Any:
    import transformers

    level = transformers.logging.get_verbosity()
    # Warnings are hidden here: the user sees them when the recipe's script reads this file again.
    transformers.logging.set_verbosity_error()
    try:
        return transformers.AutoConfig.from_pretrained(configuration.file, trust_remote_code=False)
    except Exception as error:
        model_type = configuration.values["model_type"]
        if model_type not in transformers.CONFIG_MAPPING:
            raise InputError(
                f"{configuration.name}: transformers {transformers.__version__} has no models of "
                f"the type {model_type}, and code that comes with a model is not run"
            ) from None
        # The error from transformers can wrap another error. The innermost one tells the reason.
        first: BaseException = error
        while first.__cause__ is not None:
            first = first.__cause__
        raise InputError(f"{configuration.file}: transformers cannot read it: {first}") from None
    finally:
        transformers.logging.set_verbosity(level)
