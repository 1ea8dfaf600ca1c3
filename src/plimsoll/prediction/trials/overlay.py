"""Gives a trial overlays: the trial sees every folder of the machine, and its writes go elsewhere.

The trial gets a new root with an overlay over each folder of the real root. Writes go to an upper
folder, which is deleted with the trial. The kernel lets no ordinary user put an overlay over a
folder that contains mounts. For such a folder the trial makes a new folder with the same entries,
or, if there are more than `MOST_ENTRIES` entries, shows the real folder read-only.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from plimsoll.prediction.trials import kernel
from plimsoll.prediction.trials.namespaces import enter_namespaces

MOST_ENTRIES = 64
"""A folder that contains mounts is read-only in the trial if it has more entries than this."""
_ROOT = Path("/")
_DEVICES, _PROCESSES, _SYSTEM = Path("/dev"), Path("/proc"), Path("/sys")
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108


class Shown(Enum):
    """How a trial's root shows a part of the real root."""

    OVERLAID = auto()
    ANEW = auto()
    """A new folder, with the same entries as the real one."""
    AS_IT_IS = auto()
    """The real folder, writable, with all mounts below it."""
    READ_ONLY = auto()
    LINK = auto()
    EMPTY = auto()
    """An empty folder in memory."""


@dataclass(frozen=True)
class Layer:
    """The three folders of an overlay mount.

    Attributes:
        lower: The real folder, which the overlay covers.
        upper: The folder for the trial's writes.
        work: An empty folder beside `upper`, which the kernel needs for its own use.
    """

    lower: Path
    upper: Path
    work: Path


Step = tuple[Shown, Path]


def plan(
    free: Sequence[Path], mounts: Sequence[Path], most_entries: int = MOST_ENTRIES
) -> list[Step]:
    """Returns how the trial's root shows each part of the real root.

    In the list, a folder of kind `ANEW` comes before its entries. The free folders come last.

    Args:
        free: Folders that are shown as they are and stay writable; missing ones are left out.
        mounts: The mount points.
        most_entries: See `MOST_ENTRIES`.
    """
    steps = list(_folder_anew(_ROOT, frozenset(mounts), most_entries))
    return steps + [(Shown.AS_IT_IS, place) for place in free if place.is_dir()]


def _folder_anew(folder: Path, mounts: frozenset[Path], most: int) -> Iterator[Step]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        place = folder / entry.name
        if entry.is_symlink():
            yield Shown.LINK, place
        elif not entry.is_dir():
            yield Shown.READ_ONLY, place
        elif place in (_DEVICES, _PROCESSES):
            yield Shown.AS_IT_IS, place
            if place == _DEVICES and _SHARED_MEMORY.is_dir():
                yield Shown.EMPTY, _SHARED_MEMORY
        elif place == _SYSTEM:
            yield Shown.READ_ONLY, place
        elif not any(place in mount.parents for mount in mounts):
            yield Shown.OVERLAID, place
        elif _has_at_most(place, most):
            yield Shown.ANEW, place
            yield from _folder_anew(place, mounts, most)
        else:
            yield Shown.READ_ONLY, place


def _has_at_most(folder: Path, most: int) -> bool:
    try:
        return sum(1 for _ in folder.iterdir()) <= most
    except OSError:  # this user may not read the folder
        return False


def mounted_places() -> list[Path]:
    """Returns the mount points that this process sees."""
    with Path("/proc/self/mountinfo").open("rb") as lines:
        return [Path(os.fsdecode(_plain(line.split()[4]))) for line in lines]


def _plain(name: bytes) -> bytes:
    """Decodes a name of mountinfo, which escapes spaces, tabs, newlines and backslashes."""
    head, *rest = name.split(b"\\")
    return head + b"".join(bytes([int(part[:3], 8)]) + part[3:] for part in rest)


class Overlay:
    """The root of a trial.

    Attributes:
        root: The new root. Folders of the real root that contain mounts are remade in it.
        layers: For each folder with an overlay, the folders of the overlay mount.

    Args:
        scratch: The trial's own folder, which holds the upper folders of the overlays. The kernel
            allows no upper folder inside the lower folder of the same overlay. So if an overlay
            covers a parent of `scratch`, the upper folder of that overlay is in a tmpfs.
        free: Further folders that are shown as they are and stay writable.
    """

    def __init__(self, scratch: Path, free: Sequence[Path]) -> None:
        self.root = scratch / "root"
        self._in_memory = scratch / "memory"
        self._on_disk = scratch / "upper"
        for folder in (self.root, self._in_memory, self._on_disk):
            folder.mkdir(mode=0o700)
        self._steps = plan([scratch, *free], mounted_places())
        overlaid = [place for shown, place in self._steps if shown is Shown.OVERLAID]
        self.layers = [self._layer(place, number, scratch) for number, place in enumerate(overlaid)]
        self._layer_over = {layer.lower: layer for layer in self.layers}

    def _layer(self, place: Path, number: int, scratch: Path) -> Layer:
        within = self._in_memory if place in scratch.parents else self._on_disk
        return Layer(place, within / str(number), within / f"{number}.work")

    def make(self) -> None:
        """Makes the upper folders. Call it inside the trial's namespaces.

        Raises:
            OSError: If the file system of the trial's folder cannot hold them.
        """
        kernel.mount("plimsoll", self.root, "tmpfs", options="mode=755")
        self.root.chmod(_mode(_ROOT, _ROOT.stat()))
        kernel.mount("plimsoll", self._in_memory, "tmpfs")
        for layer in self.layers:
            layer.work.mkdir()
            layer.upper.mkdir()
            status = layer.lower.stat()
            with suppress(OSError):  # an ordinary user cannot give a folder to another owner
                os.chown(layer.upper, status.st_uid, status.st_gid)
            layer.upper.chmod(_mode(layer.lower, status))
            # Overlays need extended attributes. The next line raises if the file system has none.
            os.setxattr(layer.upper, "user.plimsoll", b"")
            os.utime(layer.upper, ns=(status.st_atime_ns, status.st_mtime_ns))

    def unmake(self) -> None:
        """Unmounts the tmpfs file systems, so that the trial's folder can be removed.

        Raises:
            OSError: If the kernel refuses to unmount them.
        """
        kernel.unmount(self.root)
        kernel.unmount(self._in_memory)

    def enter(self, writable: Sequence[Path]) -> None:
        """Makes the trial's root the root of this process; the current folder stays the same.

        The process must have a mount namespace of its own.

        Args:
            writable: Folders in which the trial must be able to write.

        Raises:
            OSError: If the kernel refuses a mount that one of `writable` needs.
        """
        here = os.getcwd()  # noqa: PTH109
        for shown, place in self._steps:
            try:
                self._show(shown, place)
            except OSError:
                if any(place in (folder, *folder.parents) for folder in writable):
                    raise
                with suppress(OSError):
                    self._show(Shown.READ_ONLY, place)
        self._check(writable)
        kernel.change_root(self.root)
        os.chdir(here)

    def _check(self, writable: Sequence[Path]) -> None:
        """Raises `PermissionError` if one of `writable` is neither overlaid nor shown as it is."""
        shown = {place: how for how, place in self._steps}
        for folder in writable:
            how = next(shown[place] for place in (folder, *folder.parents) if place in shown)
            if how not in (Shown.OVERLAID, Shown.AS_IT_IS):
                raise PermissionError(f"{folder} has other file systems in it")

    def _show(self, shown: Shown, place: Path) -> None:
        new = self.root / place.relative_to(_ROOT)
        if shown is Shown.LINK:
            new.symlink_to(os.readlink(place))  # noqa: PTH115  a Path would tidy it up
            return
        self._prepare(place, new)
        if shown is Shown.OVERLAID:
            layer = self._layer_over[place]
            options = f"lowerdir={_escaped(layer.lower)},upperdir={_escaped(layer.upper)},"
            options += f"workdir={_escaped(layer.work)},userxattr,volatile"
            kernel.mount("plimsoll", new, "overlay", options=options)
        elif shown is Shown.EMPTY:
            kernel.mount("plimsoll", new, "tmpfs", options="mode=1777")
        elif shown in (Shown.AS_IT_IS, Shown.READ_ONLY):
            kernel.mount(str(place), new, None, kernel.BIND | kernel.WITH_ALL_BELOW)
        if shown is Shown.READ_ONLY:
            kernel.make_read_only(new)

    @staticmethod
    def _prepare(place: Path, new: Path) -> None:
        """Makes an empty file or folder as a mount point for the real one."""
        if new.exists():
            return
        if place.is_dir():
            new.mkdir()
            new.chmod(stat.S_IMODE(place.stat().st_mode))
        else:
            new.touch()


def _mode(place: Path, status: os.stat_result) -> int:
    """Returns the mode of an upper folder: read-only if the user cannot write to the lower one."""
    mode = stat.S_IMODE(status.st_mode)
    return mode if os.access(place, os.W_OK) else mode & ~stat.S_IWUSR


def _escaped(place: Path) -> str:
    """Escapes a path for the options of an overlay mount."""
    return "".join(f"\\{sign}" if sign in "\\:," else sign for sign in str(place))


def check_possible(scratch: Path) -> None:
    """Tries in a child process to mount an overlay as this user.

    Args:
        scratch: A folder for the check.

    Raises:
        OSError: If this machine does not allow it.
    """
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            enter_namespaces(with_network=True)
            _try(scratch)
        except OSError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as told:
        problem = told.read()
    os.waitpid(process, 0)
    if problem:
        raise OSError(problem)


def _try(scratch: Path) -> None:
    """Mounts an overlay, and removes and remakes a folder in it, as a script may do."""
    place = scratch / "tried"
    place.mkdir()
    kernel.mount("plimsoll", place, "tmpfs")
    for name in ("lower", "upper", "work", "merged"):
        (place / name).mkdir()
    (place / "lower" / "folder").mkdir()
    (place / "lower" / "folder" / "file").touch()
    names = [place / name for name in ("lower", "upper", "work")]
    options = ",".join(f"{name.name}dir={_escaped(name)}" for name in names)
    kernel.mount("plimsoll", place / "merged", "overlay", options=f"{options},userxattr,volatile")
    inner = place / "merged" / "folder"
    (inner / "file").unlink()
    inner.rmdir()
    inner.mkdir()
    if any(inner.iterdir()):
        raise OSError("what was removed is there again")
