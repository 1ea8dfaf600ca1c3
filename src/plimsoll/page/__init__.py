"""GPU memory on a page: what was live when, where it lay, and what asked for it.

`view` writes a recording, or two side by side, as one self-contained HTML page; `serve` shows the
same page from a server on this machine that has the details of any size; `export` writes what other
tools read.
"""

from plimsoll.page.exports import EXPORTS, export
from plimsoll.page.page_file import ViewResult, view
from plimsoll.page.server import PageServer, serve

__all__ = ["EXPORTS", "PageServer", "ViewResult", "export", "serve", "view"]
