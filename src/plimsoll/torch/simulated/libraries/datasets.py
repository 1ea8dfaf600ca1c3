"""Makes up the rows of missing data sets, from their declared features."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.libraries.made_up import tell_made_up

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_ROWS = 1000
"""The number of different rows that plimsoll makes up for a data set.

If a data set declares more rows, plimsoll repeats these rows. If it declares no number of rows, it
has exactly these rows.
"""
_CHARACTERS = 400
"""The average number of characters of a text if no size is declared."""
_ITEMS = 32
"""The number of items of a list if no length is declared."""
_PIXELS = 256
_WORDS = (
    *("the", "of", "and", "to", "a", "in", "is", "that", "it", "was", "for", "on", "are"),
    *("with", "as", "at", "be", "this", "have", "from"),
)


def make_missing_rows(module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads `datasets.load`, and lets load_dataset make up the rows if there are no files."""
    execute()
    load = module.load_dataset

    def load_dataset(path: str, name: str | None = None, *arguments: Any, **named: Any) -> Any:
        try:
            return load(path, name, *arguments, **named)
        except (FileNotFoundError, ConnectionError) as error:
            declared = _declared(path, name, named.get("features"))
            if declared is None:
                raise type(error)(
                    f"plimsoll makes up rows of {path} once it knows their features: give "
                    "load_dataset features=, or a folder with a README.md that has dataset_info "
                    f"({str(error).splitlines()[0]})"
                ) from error
        split = arguments[2] if len(arguments) > 2 else named.get("split")
        made = _make(path, declared, split)
        return made.to_iterable_dataset() if named.get("streaming") else made

    module.load_dataset = load_dataset  # type: ignore[attr-defined]


def _declared(path: str, name: str | None, features: Any) -> Any:
    """Returns the declared features and sizes of a data set; None if nothing declares them."""
    from datasets import DatasetInfo
    from datasets.info import DatasetInfosDict

    if features is not None:
        return DatasetInfo(features=features)
    for folder in _folders(path):
        infos = DatasetInfosDict.from_directory(folder)
        info = infos.get(name or "default") or next(iter(infos.values()), None)
        if info is not None and info.features:
            return info
    return None


def _folders(path: str) -> list[str]:
    """Returns folders that may declare the features: the data set's own, and the hub cache's."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    folders = [path] if Path(path).is_dir() else []
    for file in ("README.md", "dataset_infos.json"):
        try:
            found = try_to_load_from_cache(path, file, repo_type="dataset")
        except HFValidationError:
            break
        if isinstance(found, str):
            folders.append(str(Path(found).parent))
    return folders


def _make(path: str, info: Any, split: Any) -> Any:
    """Returns the requested split or splits of a made-up data set; all splits by default."""
    from datasets import DatasetDict

    splits = info.splits or {}
    counts = {name: each.num_examples or _ROWS for name, each in splits.items()}
    if not counts:
        first = str(split or "train").split("[")[0].split("+")[0]
        counts = {first: _ROWS}
    size = sum(each.num_bytes or 0 for each in splits.values()) / sum(counts.values())
    rows = _rows(info.features, size)
    tell_made_up(
        f"the rows of {path} are not here: they are made up, {sum(counts.values()):,} of the "
        "features that are declared, texts of "
        + (f"{size:,.0f} bytes a row" if size else f"about {_CHARACTERS} letters")
    )
    if split is None:
        return DatasetDict({name: _repeated(rows, 0, count) for name, count in counts.items()})
    if isinstance(split, (list, tuple)):
        return [_make_split(rows, each, counts) for each in split]
    return _make_split(rows, split, counts)


def _make_split(rows: Any, split: Any, counts: dict[str, int]) -> Any:
    """Returns the rows that a split such as "train[:10%]" selects."""
    from datasets import ReadInstruction, concatenate_datasets

    if not isinstance(split, ReadInstruction):
        split = ReadInstruction.from_spec(str(split))
    parts = [
        _repeated(rows, each.from_ or 0, counts[each.splitname] if each.to is None else each.to)
        for each in split.to_absolute(counts)
    ]
    return concatenate_datasets(parts) if len(parts) > 1 else parts[0]


def _repeated(rows: Any, first: int, last: int) -> Any:
    import numpy as np

    return rows.select(np.arange(first, last) % len(rows))


def _rows(features: Any, size: float) -> Any:
    """Returns `_ROWS` random rows of `size` bytes on average. A size of 0 means unknown."""
    from datasets import Dataset

    texts = max(1, sum(map(_texts_of, features.values())))
    draw = _Draw(size / texts if size else _CHARACTERS)
    columns = {
        name: [draw.value(name, feature) for _ in range(_ROWS)]
        for name, feature in features.items()
    }
    return Dataset.from_dict(columns, features=features)


def _texts_of(feature: Any) -> int:
    """Returns how many texts a feature's value has. Each list is assumed to have two items."""
    if isinstance(feature, dict):
        return sum(map(_texts_of, feature.values()))
    inner = getattr(feature, "feature", None)
    if inner is not None:
        return 2 * _texts_of(inner)
    return int(getattr(feature, "dtype", None) in ("string", "large_string"))


class _Draw:
    """Draws random values of features. Each run draws the same values."""

    def __init__(self, characters: float) -> None:
        self._random = random.Random(0)  # noqa: S311 (of data that nobody has)
        self._characters = characters

    def value(self, name: str, feature: Any) -> Any:
        """Returns a value of a feature.

        Raises:
            NotImplementedError: If plimsoll makes up no values of the feature's type.
        """
        import datasets

        if isinstance(feature, dict):
            return {key: self.value(key, each) for key, each in feature.items()}
        if isinstance(feature, list):
            return self._items(name, feature[0], -1)
        if hasattr(feature, "feature"):
            return self._items(name, feature.feature, getattr(feature, "length", -1))
        if isinstance(feature, datasets.ClassLabel):
            return self._random.randrange(feature.num_classes)
        if isinstance(feature, datasets.Translation):
            return {language: self._text() for language in feature.languages}
        if isinstance(feature, datasets.Image):
            return self._image()
        if hasattr(feature, "shape"):
            import numpy as np

            return np.zeros([each or _ITEMS for each in feature.shape], feature.dtype)
        if isinstance(feature, datasets.Value):
            return self._number_or_text(str(feature.dtype))
        raise NotImplementedError(
            f"plimsoll makes up no values of {type(feature).__name__} ({name}): have the files here"
        )

    def _items(self, name: str, feature: Any, length: int) -> Any:
        if isinstance(feature, dict):  # a dialogue, for example
            made = [self.value(name, feature) for _ in range(length if length > 0 else 2)]
            for place, item in enumerate(made):
                if "role" in item:
                    item["role"] = ("user", "assistant")[place % 2]
            return made
        count = length if length > 0 else _ITEMS
        return [self.value(name, feature) for _ in range(count)]

    def _number_or_text(self, dtype: str) -> Any:
        if "string" in dtype:
            return self._text()
        if "int" in dtype:
            return self._random.randrange(2)
        if "float" in dtype:
            return self._random.gauss(0, 1)
        if dtype == "bool":
            return self._random.random() < 0.5
        if "binary" in dtype:
            return bytes(int(self._characters))
        raise NotImplementedError(f"plimsoll makes up no values of {dtype}: have the files here")

    def _text(self) -> str:
        spread = 0.5
        letters = self._characters * self._random.lognormvariate(-spread * spread / 2, spread)
        words = self._random.choices(_WORDS, k=1 + int(letters / 3))
        return " ".join(words)[: max(1, round(letters))]

    def _image(self) -> Any:
        from PIL import Image

        shade = tuple(self._random.randrange(256) for _ in range(3))
        return Image.new("RGB", (_PIXELS, _PIXELS), shade)
