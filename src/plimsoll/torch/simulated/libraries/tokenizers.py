"""Makes up missing tokenizers of transformers. A model's configuration gives the vocabulary size.

On average, made-up tokenizers make as many tokens as trained ones: in English, a token for 4.2
letters. They split texts into words, and long words into parts. A token stands only for the first
letters of its part, so decoded text is shorter than the original.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.libraries.made_up import tell_made_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

_BESIDES = ("added_tokens", "special_tokens_map", "tokenizer_config", "chat_template")
"""The beginnings of keys for files that describe a tokenizer but lack its vocabulary.

transformers lists a tokenizer's files under such keys.
"""
_SPECIAL = {
    **{"bos": "<s>", "eos": "</s>", "pad": "<pad>", "unk": "<unk>", "sep": "<sep>"},
    **{"cls": "<cls>", "mask": "<mask>"},
}
_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
_TOKENS = r"[\p{Han}\p{Hiragana}\p{Katakana}]| ?\p{L}{1,6}| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}]{1,3}|\s+"
_LETTERS = "etaoinshrdlcumwfgypbvkjxqz0123456789.,'\"-:;()?!/\n_*=+<>[]{}#%&@$\\|~^`"
"""The characters with which tokens begin, after an optional space; the commonest first."""
_KNOWN = 3
"""The maximum number of characters in a token that stands for text.

A leading space counts as a character. If the vocabulary is too small, these tokens are shorter.
"""


def make_missing_tokenizers(module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads `transformers.tokenization_utils_base`, and makes up tokenizers that have no files."""
    execute()
    base = module.PreTrainedTokenizerBase
    load = base._from_pretrained.__func__

    def load_or_make(
        cls: Any, files: dict[str, Any], name: Any, *arguments: Any, **named: Any
    ) -> Any:
        wanted = [path for kind, path in files.items() if not kind.startswith(_BESIDES)]
        is_own = not cls.__module__.startswith("transformers.")
        if is_own or not cls.vocab_files_names or any(path is not None for path in wanted):
            return load(cls, files, name, *arguments, **named)
        return _make(str(name), named)

    base._from_pretrained = classmethod(load_or_make)


def _make(name: str, asked: dict[str, Any]) -> Any:
    """Returns a made-up tokenizer for a model, whose configuration must be available.

    Args:
        name: The model's name or folder.
        asked: The program's arguments for the tokenizer, by name.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import AutoConfig, PreTrainedTokenizerFast

    # In a diffusers pipeline, the text encoder's folder has the configuration.
    encoder = Path(name.replace("tokenizer", "text_encoder"))
    place = encoder if (encoder / "config.json").is_file() else name
    config = AutoConfig.from_pretrained(place).get_text_config()
    special = _special_tokens(config)
    words = _words(config.vocab_size - len(special))
    longest = max(map(len, words))
    others = (*words, *(f"<{number}>" for number in range(config.vocab_size)))
    rest = iter(others)
    tokens = [special.get(number) or next(rest) for number in range(config.vocab_size)]
    tokenizer = Tokenizer(
        models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token=_SPECIAL["unk"])
    )
    first = Regex(rf"\A[\s\S]{{1,{longest}}}")
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_TOKENS), "isolated"),
            pre_tokenizers.Split(first, "removed", invert=True),
        ]
    )
    tokenizer.decoder = decoders.Fuse()
    tell_made_up(
        f"the tokenizer of {name} is not here: one is made up that has its {config.vocab_size:,} "
        "tokens and takes 4.2 letters of English a token",
    )
    known = {f"{kind}_token": t for kind, t in _SPECIAL.items() if t in special.values()}
    settings = {
        **known,
        "model_max_length": getattr(config, "max_position_embeddings", None) or int(1e30),
        "chat_template": _TEMPLATE,
        **{key: value for key, value in asked.items() if not key.startswith("_")},
    }
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, name_or_path=name, **settings)


def _special_tokens(config: Any) -> dict[int, str]:
    """Returns the configuration's special tokens by number. Adds a token for unknown words."""
    special: dict[int, str] = {}
    for kind, token in _SPECIAL.items():
        number = getattr(config, f"{kind}_token_id", None)
        number = number[0] if isinstance(number, list) else number
        if isinstance(number, int) and 0 <= number < config.vocab_size:
            special.setdefault(number, token)
    unknown = _SPECIAL["unk"]
    if unknown not in special.values():
        special[next(number for number in itertools.count() if number not in special)] = unknown
    return special


def _words(count: int) -> list[str]:
    """Returns up to `count` beginnings of words, the shortest first.

    For each length of 2 or more, the result has either all beginnings of that length or none. For
    the length 1, the result has as many beginnings as `count` allows.
    """
    words: list[str] = []
    for length in range(1, _KNOWN + 1):
        longer = list(_beginnings(length))
        if len(words) + len(longer) > count and words:
            break
        words += longer
    return words[:count]


def _beginnings(length: int) -> Iterator[str]:
    """Yields all made-up tokens of `length` characters.

    They are combinations of letters. The first character may be a space. A token of one character
    may also be a digit or a sign.
    """
    letters = _LETTERS if length == 1 else _LETTERS[:26]
    for first in (" ", *letters):
        for others in itertools.product(letters, repeat=length - 1):
            yield first + "".join(others)
