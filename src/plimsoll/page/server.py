"""Serves the page, and on request the blocks that the page leaves out.

The server listens only on the loopback interface, on a port that the system chooses. Every URL path
must begin with a random token, and the Host header must name this server. So a page of another
origin cannot access the server, even if that page's host name resolves to this machine.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import sys
from contextlib import contextmanager, suppress
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from plimsoll.base.errors import InputError
from plimsoll.base.files import NewFile
from plimsoll.base.printable import printable
from plimsoll.page.blocks import blocks_between, pack_blocks
from plimsoll.page.document import MOST_BYTES, make_page
from plimsoll.page.run import open_recording, prepare
from plimsoll.recordings.reading import read_recording

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from os import PathLike

    from plimsoll.page.run import Run
    from plimsoll.recordings.recording import Recording

_MOST_EVENTS = 1 << 24
"""The most events that the range in a request for blocks may have."""

_MOST_UNREAD = 1 << 24
"""The most bytes of a refused request's body that the server reads."""

_PIECE = 1 << 20
_DIGITS = 16  # a Content-Length with this many digits or more is refused

_REDIRECT = """\
<!doctype html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={url}">
<title>plimsoll view</title>
<a href="{url}">The page</a>
"""


class PageServer:
    """Serves the page of one or two runs, on this machine only.

    As a context manager the server runs in a thread of its own. `serve_forever` runs it in the
    caller's thread.

    Attributes:
        url: The address of the page.

    Args:
        runs: The runs to show.
        most_bytes: The size that the page should not exceed.
        page: The HTML of a page with links to the ranks; None to show the page of the runs.
        open_rank: Prepares the recording of a rank; raises `KeyError` for an unknown rank.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        *,
        most_bytes: int = MOST_BYTES,
        page: str | None = None,
        open_rank: Callable[[int], Run] | None = None,
    ) -> None:
        if page is None:
            page = make_page(runs, served=True, most_bytes=most_bytes).html
        token = secrets.token_urlsafe(24)

        class Handler(_Handler):
            pass

        Handler.page, Handler.shown, Handler.token = page.encode(), _Shown(runs), token
        Handler.open_rank = open_rank
        self._server = _Server(("127.0.0.1", 0), Handler)
        Handler.host = f"127.0.0.1:{self._server.server_address[1]}"
        self.url = f"http://{Handler.host}/{token}/"

    def serve_forever(self) -> None:
        """Serves in this thread until the process is interrupted."""
        try:
            self._server.serve_forever()
        finally:
            self._server.server_close()

    @contextmanager
    def opening_file(self) -> Iterator[Path]:
        """Yields a file that redirects to the page, and that only this user can read.

        Start a browser with this file and not with `url`, because all users of the machine can read
        the arguments of processes, and `url` has the token.
        """
        with TemporaryDirectory(prefix="plimsoll-") as folder:
            path = Path(folder) / "view.html"
            with NewFile(path) as file:
                file.write(_REDIRECT.format(url=self.url).encode())
            yield path

    def __enter__(self) -> PageServer:
        self._thread = Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def serve(
    source: str | PathLike[str] | Recording, other: str | PathLike[str] | Recording | None = None
) -> PageServer:
    """Makes a server for the page of a recording, or of two side by side.

    Raises:
        InputError: If a recording cannot be read.
    """
    recordings = [open_recording(one) for one in (source, other) if one is not None]
    return PageServer([prepare(recording) for recording in recordings])


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores the errors that arise when a client disconnects."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Shown:
    """The devices of all shown runs, in the order in which the runs were added."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.devices = [view for run in runs for view in run.devices]
        self._adding = Lock()

    def add(self, run: Run) -> int:
        """Adds a run's devices, and returns the number of the run's first device."""
        with self._adding:
            first = len(self.devices)
            self.devices.extend(run.devices)
        return first


class _Handler(BaseHTTPRequestHandler):
    """Answers each request of the page in valid HTTP.

    Each server makes a subclass whose class attributes hold the server's state.
    """

    page: bytes
    shown: _Shown
    open_rank: Callable[[int], Run] | None
    token: str
    host: str

    server_version = "plimsoll"
    sys_version = ""
    timeout = 60

    def parse_request(self) -> bool:
        """Parses a request, and answers an empty one, which the base class leaves unanswered."""
        is_request = super().parse_request()
        if not is_request and not self.requestline.split():
            self._refuse(HTTPStatus.BAD_REQUEST, "the request is empty")
        return is_request

    def do_GET(self) -> None:
        """Answers with the page, with blocks, or with a rank's page."""
        asked = self._asked()
        if asked is None:
            return
        name, query = asked
        if name == "":
            self._answer(HTTPStatus.OK, "text/html; charset=utf-8", self.page)
        elif name == "blocks":
            self._answer_blocks(query)
        elif name == "rank":
            self._answer_rank(query)
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such thing here")

    def do_POST(self) -> None:
        """Receives a recording and answers with its page."""
        asked = self._asked()
        if asked is None:
            return
        name, query = asked
        if name == "recordings":
            self._take_recording(printable(query.get("name", ["a recording"])[0]))
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such thing here")

    def _asked(self) -> tuple[str, dict[str, list[str]]] | None:
        """Returns an authorized request's path and query. Returns None after a refusal."""
        try:
            address = urlsplit(self.path)
        except ValueError:
            self._refuse(HTTPStatus.BAD_REQUEST, "that is no address")
            return None
        _, token, *rest = [*address.path.split("/"), "", ""][:4]
        if self.headers.get("Host") != self.host:
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "this is not the host that was asked for")
        elif not hmac.compare_digest(token.encode(), self.token.encode()):
            self._refuse(HTTPStatus.FORBIDDEN, "the token is missing or wrong")
        else:
            return rest[0], parse_qs(address.query)
        return None

    def _take_recording(self, name: str) -> None:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit() and len(length) < _DIGITS):
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "a recording comes with its length")
            return
        with TemporaryDirectory(prefix="plimsoll-") as folder:
            path = Path(folder) / "recording"
            try:
                if not self._receive(path, int(length)):
                    self._refuse(HTTPStatus.BAD_REQUEST, f"{name}: not all of it has come")
                    return
                run = prepare(replace(read_recording(path), name=name))
            except (InputError, OSError) as error:
                reason = printable(str(error).replace(str(path), name))
                self._refuse(HTTPStatus.BAD_REQUEST, reason)
                return
        self._answer_run(run)

    def _answer_rank(self, query: dict[str, list[str]]) -> None:
        open_rank = type(self).open_rank
        try:
            run = open_rank(int(query["number"][0])) if open_rank is not None else None
        except (LookupError, ValueError) as error:
            reason = str(error) if isinstance(error, InputError) else "there is no such rank"
            self._refuse(HTTPStatus.NOT_FOUND, printable(reason))
            return
        if run is None:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such thing here")
        else:
            self._answer_run(run)

    def _answer_run(self, run: Run) -> None:
        first = self.shown.add(run)
        page = make_page([run], served=True, first_device=first)
        self._answer(HTTPStatus.OK, "text/html; charset=utf-8", page.html.encode())

    def _receive(self, path: Path, length: int) -> bool:
        """Writes the request's body to a private file. Returns whether the whole body arrived."""
        with NewFile(path) as file:
            while length > 0 and (piece := self.rfile.read(min(length, _PIECE))):
                file.write(piece)
                length -= len(piece)
        return length == 0

    def _answer_blocks(self, query: dict[str, list[str]]) -> None:
        try:
            number, begin, end = (int(query[name][0]) for name in ("device", "begin", "end"))
            view = self.shown.devices[number] if number >= 0 else None
        except (LookupError, ValueError):
            view = None
        is_known = view is not None and -1 <= begin <= end <= view.event_count
        if view is None or not is_known or end - begin > _MOST_EVENTS:
            self._refuse(HTTPStatus.BAD_REQUEST, "a device and a window of events are asked for")
            return
        packed = pack_blocks(view, blocks_between(view, begin, end))
        self._answer(HTTPStatus.OK, "application/json", json.dumps(packed).encode())

    def send_error(self, code: int, message: str | None = None, _: str | None = None) -> None:
        """Refuses a request that the base class could not parse."""
        status = HTTPStatus(code)
        self._refuse(status, message or status.phrase)

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        self._answer(status, "text/plain; charset=utf-8", f"{reason}\n".encode())
        self._read_the_rest()

    def _read_the_rest(self) -> None:
        """Reads the rest of a refused request.

        If data stayed unread, closing the connection would discard the answer.
        """
        with suppress(OSError):
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(1)
            left = _MOST_UNREAD
            while left > 0 and (piece := self.connection.recv(1 << 16)):
                left -= len(piece)

    def _answer(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.request_version = "HTTP/1.0"  # for HTTP/0.9 the base class would send no status line
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Prints nothing: the log would contain the token."""
