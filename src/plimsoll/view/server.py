"""The page with a server behind it, which has the blocks that the page has no room for.

It answers on the loopback interface only, on a port of the system's choice. Every address begins
with a token that nobody can guess, and the Host header must name this server, so that no page of
another origin gets at it, whatever name it gives this machine.
"""

from __future__ import annotations

import hmac
import json
import secrets
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from plimsoll.view.blocks import blocks_between, pack_blocks
from plimsoll.view.page import MOST_BYTES, Run, make_page
from plimsoll.view.view import open_runs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike
    from types import TracebackType

    from plimsoll.trace import Recording

_MOST_EVENTS = 1 << 24
"""The longest window that is answered."""


class PageServer:
    """Serves the page of one or two runs, on this machine only.

    Used as a context manager it serves in a thread; `serve_forever` serves in the caller's.

    Attributes:
        url: Where the page is.
    """

    def __init__(self, runs: Sequence[Run], *, most_bytes: int = MOST_BYTES) -> None:
        page = make_page(runs, served=True, most_bytes=most_bytes).html.encode()
        devices = [view for run in runs for view in run.devices]
        token = secrets.token_urlsafe(24)

        class Handler(_Handler):
            pass

        Handler.page, Handler.devices, Handler.token = page, devices, token
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        Handler.host = f"127.0.0.1:{self._server.server_address[1]}"
        self.url = f"http://{Handler.host}/{token}/"

    def serve_forever(self) -> None:
        """Serve until the process is interrupted."""
        try:
            self._server.serve_forever()
        finally:
            self._server.server_close()

    def __enter__(self) -> PageServer:
        self._thread = Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def serve(
    source: str | PathLike[str] | Recording, other: str | PathLike[str] | Recording | None = None
) -> PageServer:
    """A server for the page of a recording, or of two side by side.

    Raises:
        InputError: If a recording cannot be read.
    """
    return PageServer(open_runs(source, other))


class _Handler(BaseHTTPRequestHandler):
    """Answers what the page asks; the class of a server knows what it shows."""

    page: bytes
    devices: Sequence[Any]
    token: str
    host: str

    server_version = "plimsoll"
    sys_version = ""
    timeout = 60

    def do_GET(self) -> None:
        """Answer one request."""
        address = urlsplit(self.path)
        _, token, *rest = [*address.path.split("/"), "", ""][:4]
        if self.headers.get("Host") != self.host:
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "this is not the host that was asked for")
        elif not hmac.compare_digest(token.encode(), self.token.encode()):
            self._refuse(HTTPStatus.FORBIDDEN, "the token is missing or wrong")
        elif rest[0] == "":
            self._answer(HTTPStatus.OK, "text/html; charset=utf-8", self.page)
        elif rest[0] == "blocks":
            self._answer_blocks(parse_qs(address.query))
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such thing here")

    def _answer_blocks(self, query: dict[str, list[str]]) -> None:
        try:
            number, begin, end = (int(query[name][0]) for name in ("device", "begin", "end"))
            view = self.devices[number] if number >= 0 else None
        except (LookupError, ValueError):
            view = None
        if view is None or not 0 <= end - begin <= _MOST_EVENTS:
            self._refuse(HTTPStatus.BAD_REQUEST, "a device and a window of events are asked for")
            return
        packed = pack_blocks(view, blocks_between(view, begin, end))
        self._answer(HTTPStatus.OK, "application/json", json.dumps(packed).encode())

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        self._answer(status, "text/plain; charset=utf-8", f"{reason}\n".encode())

    def _answer(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing: the token would be in it."""
