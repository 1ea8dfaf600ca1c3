"""A model or a data set of Hugging Face's hub that a script needs and that is not cached.

A prediction needs no weights, only a model's configuration and tokenizer, or the description of a
data set. The script runs without a network, so plimsoll fetches these files in its own process.
"""

from __future__ import annotations

import re
import shlex
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Literal

from plimsoll.base.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

Why = Literal["unreachable", "gated", "unknown"]

_DESCRIBING = {
    "model": ("*.json", "*.model", "*.txt", "*.jinja"),
    "dataset": ("README.md", "dataset_infos.json"),
}
"""Patterns of the small files that describe a repository, by its kind."""
_NOT_DESCRIBING = ["*.index.json", "*/*"]
"""Patterns of the files that are not fetched: indices of weights, and subfolders.

A library that finds an index of weights then looks for the weights too.
"""
_NAME = re.compile(r"(?:[\w.-]{1,96}/)?[\w.-]{1,96}", re.ASCII)
_REVISION = re.compile(r"[\w./-]{1,96}", re.ASCII)
_FIRST = {"model": "config.json", "dataset": "README.md"}
_NOUNS = {"dataset": "data set"}
_LOG_IN = "hf auth login"


@dataclass(frozen=True)
class HubRepository:
    """A repository of the hub, and why a file of it is missing.

    Attributes:
        name: Its name, such as "meta-llama/Llama-3.1-8B".
        kind: "model", "dataset" or "space".
        why: "unreachable" if the hub cannot be reached, "gated" if the repository's owner must
            admit each user, "unknown" if the hub has no such repository.
        reason: The text of the error, in one line.
        file: The missing file; None if the script asked for the repository alone.
        revision: The branch, tag or commit; None for the main branch.
    """

    name: str
    kind: str
    why: Why
    reason: str
    file: str | None = None
    revision: str | None = None

    @property
    def needs_description(self) -> bool:
        """Whether the missing file is one that describes the repository."""
        if not _NAME.fullmatch(self.name) or not _REVISION.fullmatch(self.revision or "main"):
            return False
        patterns = _DESCRIBING.get(self.kind, ())
        if self.file is None:
            return bool(patterns)
        return any(fnmatch(self.file, pattern) for pattern in patterns)

    @property
    def needs_configuration(self) -> bool:
        """Whether the missing file is a model's configuration or tokenizer."""
        return self.kind == "model" and self.needs_description

    @property
    def command(self) -> str:
        """The command that fetches the missing files, without weights."""
        files = [self.file or ""]
        if self.needs_description:
            files = ["--include", "*.json"] if self.kind == "model" else [_FIRST[self.kind]]
        kind = [] if self.kind == "model" else ["--repo-type", self.kind]
        revision = [] if self.revision is None else ["--revision", self.revision]
        return shlex.join(["hf", "download", self.name, *filter(None, files), *kind, *revision])

    def missing_text(self, script: str) -> str:
        """Returns one line: the missing repository, why it is missing, and the command to fetch it.

        Args:
            script: The script's title.
        """
        loads = f"{script} loads the {_NOUNS.get(self.kind, self.kind)} {self.name} from the hub"
        what = " (the configuration is enough)" if self.needs_configuration else ""
        fetch_it = f"run{what}: {self.command}"
        if self.why == "gated":
            return (
                f"{loads}, which gives it only with a token: ask for access on its page and run "
                f"{_LOG_IN}; then {fetch_it}"
            )
        if self.why == "unknown":
            return (
                f"{loads}, which has no public one of this name: check the name, or run "
                f"{_LOG_IN}; then {fetch_it}"
            )
        return f"{loads}, which cannot be reached ({self.reason}); with a network, {fetch_it}"


def why_missing(error: BaseException) -> Why | None:
    """Returns `HubRepository.why` for an error of huggingface_hub; None for any other error."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return "gated"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "unknown"
    if isinstance(error, (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled)):
        return "unreachable"
    return None


def reason_for(error: BaseException) -> str:
    """Returns in one line why the hub could not be reached, from the error's text."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    text = str(error).strip()
    return text.splitlines()[0].rstrip(".") if text else type(error).__name__


def fetch(repository: HubRepository, script: str) -> None:
    """Fetches the files that describe a repository into the hub's cache.

    Args:
        repository: The repository.
        script: The title of the script that asks for it.

    Raises:
        InputError: If fetching fails. The message has the command that fetches the files.
    """
    import huggingface_hub as hub
    from huggingface_hub import errors

    name, kind, revision = repository.name, repository.kind, repository.revision
    try:
        # A single request first shows whether the hub can be reached: a download would retry for
        # half a minute.
        first = hub.hf_hub_url(name, _FIRST[kind], repo_type=kind, revision=revision)
        # If only this file is missing, the hub was reached. For example, the repository of a
        # diffusers pipeline has no config.json.
        with suppress(getattr(errors, "RemoteEntryNotFoundError", errors.EntryNotFoundError)):
            hub.get_hf_file_metadata(first)
        with _without_bars():
            hub.snapshot_download(
                name, repo_type=kind, revision=revision, allow_patterns=list(_DESCRIBING[kind]),
                ignore_patterns=_NOT_DESCRIBING,
            )  # fmt: skip
    except Exception as error:  # huggingface_hub passes on errors of several HTTP libraries
        why = why_missing(error) or "unreachable"
        failed = replace(repository, why=why, reason=reason_for(error))
        raise InputError(failed.missing_text(script)) from None


@contextmanager
def _without_bars() -> Iterator[None]:
    from huggingface_hub import utils

    were_shown = not utils.are_progress_bars_disabled()
    if were_shown:
        utils.disable_progress_bars()
    try:
        yield
    finally:
        if were_shown:
            utils.enable_progress_bars()
