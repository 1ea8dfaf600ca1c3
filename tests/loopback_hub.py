"""A local server that answers the requests of Hugging Face's client as the real hub does.

It offers the configuration and the tokenizer of a small Llama, without weights.
"""

from __future__ import annotations

import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from tests.model_configurations import TEXT

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LLAMA, GATED = "org/tiny-llama", "org/gated-llama"
_INDEX = {"metadata": {}, "weight_map": {"lm_head.weight": "model-00001-of-00001.safetensors"}}


def llama_files() -> dict[str, bytes]:
    """Returns the files of a small Llama's repository, keyed by name. No file has weights."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<unk>", "<s>", "</s>", *(f"word{number}" for number in range(997))]
    tokenizer = Tokenizer(models.WordLevel({each: i for i, each in enumerate(words)}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "</s>",
    }  # fmt: skip
    return {
        "config.json": json.dumps({**TEXT["llama"], "dtype": "bfloat16"}).encode(),
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": json.dumps(settings).encode(),
        "model.safetensors.index.json": json.dumps(_INDEX).encode(),
    }


class LoopbackHub:
    """A hub's server.

    Attributes:
        address: Its address, for HF_ENDPOINT.
        asked: The requested paths, in order.
        models: The files of each model, by the model's name.
        gated: The names of the models that need a token.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.models = {LLAMA: llama_files(), GATED: llama_files()}
        self.gated = {GATED}
        hub = self

        class Handler(_Handler):
            owner = hub

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"


@contextmanager
def loopback_hub() -> Iterator[LoopbackHub]:
    """Yields a hub that answers until the context ends."""
    hub = LoopbackHub()
    thread = threading.Thread(target=hub.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.server.shutdown()
        hub.server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    owner: LoopbackHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        self.owner.asked.append(path)
        is_api = path.startswith("/api/models/")
        parts = path.removeprefix("/api/models" if is_api else "").strip("/").split("/")
        name = "/".join(parts[:2])
        files = self.owner.models.get(name)
        if files is None:
            self._refuse(401, "RepoNotFound")
        elif is_api and parts[2:3] in ([], ["revision"]):
            listed = [{"rfilename": each} for each in files]
            self._send(json.dumps({"id": name, "sha": COMMIT, "siblings": listed}).encode())
        elif is_api and parts[2:3] == ["tree"]:
            self._send(json.dumps([_entry(each, files[each]) for each in files]).encode())
        elif name in self.owner.gated:
            self._refuse(403, "GatedRepo")
        elif (file := "/".join(parts[4:])) in files:
            self._send(files[file])
        else:
            self._refuse(404, "EntryNotFound")

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{_digest(body)}"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _entry(name: str, body: bytes) -> dict[str, Any]:
    return {"type": "file", "path": name, "size": len(body), "oid": _digest(body)}


def _digest(body: bytes) -> str:
    return hashlib.sha1(body, usedforsecurity=False).hexdigest()
