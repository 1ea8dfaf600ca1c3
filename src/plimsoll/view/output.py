"""Where pages and exports go: new files, over others only if that is wanted."""

from plimsoll.files import NewFile as new_file  # noqa: N813
from plimsoll.files import new_path

__all__ = ["new_file", "new_path"]
