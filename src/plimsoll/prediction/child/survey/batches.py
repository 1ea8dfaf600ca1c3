"""Notes the batch sizes of a program's loaders, and the configuration files that it reads."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from plimsoll.base.watchers import standing_in

if TYPE_CHECKING:
    from types import ModuleType

    from plimsoll.base.watchers import Watchers

_CONFIGURATIONS = (".yaml", ".yml", ".json", ".toml")
_LIBRARIES = ("/site-packages/", "/dist-packages/", f"{sys.prefix}/", f"{sys.base_prefix}/lib/")
_MOST_FILES = 32


class Batches:
    """Observes every new loader, and every opened configuration file."""

    def __init__(self, watchers: Watchers) -> None:
        self._watchers = watchers
        self._sizes: dict[int, None] = {}
        self._files: dict[str, None] = {}

    @property
    def sizes(self) -> list[int]:
        """The batch sizes, in the order in which loaders were made."""
        return list(self._sizes)

    @property
    def files(self) -> list[str]:
        """The configuration files that the program read, by absolute path."""
        return list(self._files)

    def listen(self) -> None:
        """Begins to observe opened files. PyTorch need not be imported."""
        note = self._watchers.guarded("the configurations that it reads", self._note_file)

        def heard(event: str, given: tuple[Any, ...]) -> None:
            is_path = event == "open" and isinstance(given[0], str)
            if is_path and given[0].endswith(_CONFIGURATIONS):
                note(given[0], given[1])

        sys.addaudithook(heard)

    def install(self, torch: ModuleType) -> None:
        """Begins to observe new loaders."""
        kind = torch.utils.data.DataLoader
        make = kind.__init__
        note = self._watchers.guarded("the sizes of loaders' batches", self._note_loader)

        def noted(loader: Any, *given: Any, **named: Any) -> None:
            make(loader, *given, **named)
            note(loader)

        kind.__init__ = standing_in(make, noted)

    def _note_loader(self, loader: Any) -> None:
        size = getattr(loader, "batch_size", None)
        if isinstance(size, int) and not isinstance(size, bool):
            self._sizes[size] = None

    def _note_file(self, path: str, mode: str | None) -> None:
        whole = os.path.abspath(path)  # noqa: PTH100
        is_read = mode is None or not set(mode) & set("wax+")
        is_own = not any(part in whole for part in _LIBRARIES)
        if is_read and is_own and len(self._files) < _MOST_FILES:
            self._files[whole] = None
