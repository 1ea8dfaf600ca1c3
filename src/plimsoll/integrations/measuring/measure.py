"""Measures a card of this machine, with one process for each part, and writes one file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from plimsoll.base.errors import InputError
from plimsoll.base.files import check_can_be_made
from plimsoll.engine.gpus import card_files
from plimsoll.engine.gpus.card_files import CONVOLUTION, CardFile, read_card
from plimsoll.engine.gpus.card_names import unusable
from plimsoll.engine.gpus.profiles import GpuProfile, built_in_profile
from plimsoll.integrations.measuring import rates
from plimsoll.integrations.measuring.contexts import context_bytes
from plimsoll.integrations.measuring.convolutions import common_convolutions
from plimsoll.integrations.measuring.idle import CardInUseError, Idle
from plimsoll.integrations.measuring.text import measured_text
from plimsoll.torch.simulated.ranks.nccl import Communicator

_ON_CARD = "plimsoll.integrations.measuring.on_card"
_SAYS = "plimsoll: "
_HAS_ANSWER = (0, 1, 3)
"""The exit statuses with which `plimsoll predict` prints a prediction.

0 means that the program fits on the card, 1 that it does not, and 3 that plimsoll cannot tell.
"""
_PREDICT = (sys.executable, "-m", "plimsoll", "predict", "--json")
_MOST_PREDICTIONS = 4
"""The most predictions that run at the same time."""
_MOST_SECONDS = 900
"""Seconds after which a process that measures one part, such as the card's speed, is stopped."""
_CONVOLUTION_SECONDS = {False: 60.0, True: 400.0}
_SEARCH_SECONDS = {False: 20.0, True: 100.0}
"""The seconds for measuring the searches of `cudnn.benchmark`.

The key says whether the measurement of the card is `thorough`.
"""

Say = Callable[[str], None]


def _say_nothing(line: str) -> None:
    del line


@dataclass(frozen=True)
class Measured:
    """A measurement and its file.

    Attributes:
        found: The figures.
        path: The file with the figures.
        notes: A line for each part that could not be measured.
        seconds: How long the measurement took.
    """

    found: CardFile
    path: Path
    notes: list[str]
    seconds: float

    def __str__(self) -> str:
        return measured_text(self.found, self.path, self.notes, self.seconds)


@dataclass
class _Machine:
    """Starts the measuring processes, and holds their environment.

    Attributes:
        gpu: The card's number, as CUDA_VISIBLE_DEVICES takes it; "" for the first card that the
            environment allows.
        simulated: The name of the simulated card; "" for the real one.
        idle: Checks the card for other processes.
        next_idle: Checks the second card; None if only one is measured.
        environment: Additional environment variables for the processes.
    """

    gpu: str
    simulated: str
    idle: Idle | None = None
    next_idle: Idle | None = None
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, part: str, **arguments: Any) -> Any:
        """Measures one part, such as the card's speed, in a process of its own.

        Raises:
            InputError: If the process fails, or another program used the card.
        """
        found = _result(part, self.start(part, **arguments))
        for idle in (self.idle, self.next_idle):
            if idle is not None:
                idle.check()
        return found

    def start(self, part: str, **arguments: Any) -> subprocess.Popen[str]:
        command = [sys.executable]
        if self.simulated:
            command += ["-m", "plimsoll", "run", "--simulate", self.simulated, "--gpus", "2"]
        environment = os.environ | self.environment
        if self.gpu and not self.simulated:
            environment |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": self.gpu}
        process = subprocess.Popen(  # noqa: S603
            [*command, "-m", _ON_CARD],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # the process has already ended; its output says why
            process.stdin.write(json.dumps({"part": part, **arguments}))
            process.stdin.close()
        process.stdin = None
        return process


def _result(part: str, process: subprocess.Popen[str]) -> Any:
    try:
        said, errors = process.communicate(timeout=_MOST_SECONDS)
    except subprocess.TimeoutExpired:
        raise InputError(f"measuring {part} took more than {_MOST_SECONDS} s") from None
    finally:
        process.kill()
        process.wait()
    for line in reversed(said.splitlines()):
        if line.startswith("{") or line.isdecimal():
            return json.loads(line)
    raise InputError(_last_line(errors, f"{part.replace('_', ' ')}: nothing could be measured: "))


def _last_line(errors: str, doing: str) -> str:
    """Returns the error message for a failed process: `doing` and the last line of its stderr.

    If plimsoll wrote that line, returns it without `doing` and without the prefix "plimsoll: ".
    """
    last = (errors.strip() or "its process printed nothing").splitlines()[-1]
    return last.removeprefix(_SAYS) if last.startswith(_SAYS) else doing + last


def measure_card(
    scripts: Sequence[Path] = (),
    *,
    gpu: int | None = None,
    name: str = "",
    thorough: bool = False,
    simulated: str = "",
    out: Path | None = None,
    say: Say = _say_nothing,
) -> Measured:
    """Measures a card, and keeps the figures for later predictions.

    Args:
        scripts: Programs whose convolutions are measured before those of well-known networks.
        gpu: The card's number in nvidia-smi; None for the first one visible to programs.
        name: The card's name in predictions; "" for the name that PyTorch reports.
        thorough: Whether to take ten minutes instead of two.
        simulated: The name of a simulated card to measure instead of a real one.
        out: The file to write; None for the user's own file for this card and driver.
        say: A function that is called with the name of each part before that part is measured.

    Raises:
        InputError: If another process uses the card, a script does not exist, the file cannot be
            written, or a part cannot be measured.
    """
    for script in scripts:
        if not script.is_file():
            raise InputError(f"{script}: no such file")
    if name and (why_not := unusable(name)):
        raise InputError(f"the name {name!r} {why_not}")
    if out is not None:
        check_can_be_made(out, force=out.exists() and bool(read_card(out)))
    began = time.monotonic()
    machine = _Machine("" if gpu is None else str(gpu), simulated)
    say("the card")
    about = machine.run("card")
    if not about:
        raise InputError(
            "PyTorch sees no GPU here, so there is no card to measure; "
            "`plimsoll measure --simulate H100` shows what the command prints"
        )
    with ExitStack() as held:
        notes: list[str] = []
        if not simulated:
            machine.idle = held.enter_context(Idle(about["uuid"]))
            if machine.idle.unseen:
                notes.append(f"which processes used the card meanwhile: {machine.idle.unseen}")
        found = _measured(machine, about, name, scripts, notes, thorough=thorough, say=say)
    path = out or card_files.file_of(found.name, found.driver)
    card_files.write_card(found, path)
    return Measured(found, path, notes, time.monotonic() - began)


def _measured(
    machine: _Machine,
    about: dict[str, Any],
    name: str,
    scripts: Sequence[Path],
    notes: list[str],
    *,
    thorough: bool,
    say: Say,
) -> CardFile:
    found = _basics(machine, about, name, say)
    with tempfile.TemporaryDirectory() as folder:
        # From here on, predictions for the card use the new figures instead of an older file.
        machine.environment[card_files.FOLDER_VARIABLE] = folder
        card_files.write_card(found, Path(folder, "card.toml"))
        say(f"{found.name}: NCCL's memory")
        found = _if_it_can(partial(_with_nccl, found, machine), found, "NCCL's memory", notes)
        if about["next_uuid"]:
            of_two = partial(_with_two_ranks, found, machine, about["next_uuid"])
            found = _if_it_can(of_two, found, "NCCL's memory of two ranks", notes)
        say(f"{found.name}: convolutions")
        found, left_out = _with_convolutions(found, machine, scripts, thorough=thorough)
        if left_out:
            notes.append(f"{left_out} convolutions of the scripts: no time, or too large")
        say(f"{found.name}: attention")
        return _if_it_can(partial(_checked, found, machine, "attention"), found, "attention", notes)


def _if_it_can(
    measure: Callable[[], CardFile], found: CardFile, what: str, notes: list[str]
) -> CardFile:
    """Returns the card's figures with one more part measured by `measure`.

    If the measurement fails, adds a note and returns the figures unchanged.
    """
    try:
        return measure()
    except CardInUseError:
        raise
    except InputError as error:
        notes.append(f"{what}: {error}")
        return found


def _basics(machine: _Machine, about: dict[str, Any], name: str, say: Say) -> CardFile:
    """Measures the card's context and speed.

    Returns the card's figures so far, without the memory of NCCL and of kernels.
    """
    own_name = str(about["name"])
    name = name or (f"Simulated {own_name}" if machine.simulated else own_name)
    if why_not := unusable(name):
        raise InputError(f"the card's name {name!r} {why_not}; give it another one with --name")
    known = built_in_profile(own_name)
    say(f"{name}: its context")
    before = 0 if machine.idle is None else machine.idle.before_bytes
    parts = machine.run("contexts", before_bytes=before)
    say(f"{name}: how fast it is")
    speeds = machine.run("rates")
    card = {figure: about[figure] for figure in card_files.OF_PYTORCH} | {
        "memory_bandwidth_bytes_per_s": speeds["copy_bytes_per_s"] / rates.REACHED_OF_BANDWIDTH,
        "bus_bytes_per_s": speeds["bus_bytes_per_s"],
        "fp32_flops": speeds["fp32_flops"] / rates.REACHED_OF_FP32_FLOPS,
        "tensor_flops": speeds["tensor_flops"] / rates.REACHED_OF_TENSOR_FLOPS,
        "context_bytes": context_bytes(parts),
        "kind": _kind(own_name) if known is None else known.kind,
        "nvlinks": 0 if known is None else known.nvlinks,
        "nccl_process_bytes": 0,
        "context_parts": parts,
    }
    driver = "" if machine.simulated else card_files.driver_version()
    date = datetime.now(UTC).date().isoformat()
    return CardFile(name, driver, date, about["torch"], about["cudnn"], card, speeds)


def _with_nccl(found: CardFile, machine: _Machine) -> CardFile:
    tables = Communicator(_profile_of(found), (0,), 0).begin()
    process = max(0, int(machine.run("one_rank")) - tables.high)
    return replace(found, card=found.card | {"nccl_process_bytes": process})


def _with_two_ranks(found: CardFile, machine: _Machine, next_uuid: str) -> CardFile:
    """Measures NCCL's memory in a job on this card and a second one.

    Returns the card's figures with NCCL's memory added.

    Raises:
        InputError: If the job cannot be measured, or another process uses the second card.
    """
    if machine.simulated:
        return _checked(found, machine, "two_ranks")
    try:
        with Idle(next_uuid) as machine.next_idle:
            return _checked(found, machine, "two_ranks")
    except CardInUseError:
        raise InputError("another process used the second card") from None
    finally:
        machine.next_idle = None


def _with_convolutions(
    found: CardFile, machine: _Machine, scripts: Sequence[Path], *, thorough: bool
) -> tuple[CardFile, int]:
    """Measures convolutions, those of the scripts first.

    Returns the card's figures with these convolutions added, and the number of the scripts'
    convolutions that were not measured.
    """
    own = _convolutions_of(scripts, found.name, machine)
    wanted = dict.fromkeys([*own, *common_convolutions(thorough=thorough)])
    measured = machine.run(
        "convolutions", convolutions=list(wanted), seconds=_CONVOLUTION_SECONDS[thorough]
    )
    sizes = {words: tuple(each) for words, each in measured.items()}
    searched = machine.run(
        "searches",
        convolutions=list(wanted if thorough else own),
        seconds=_SEARCH_SECONDS[thorough],
    )
    searches: dict[str, Any] = {words: tuple(map(tuple, each)) for words, each in searched.items()}
    left_out = sum(words not in sizes for words in own)
    return replace(found, convolutions=sizes, searches=searches), left_out


def _checked(found: CardFile, machine: _Machine, part: str) -> CardFile:
    """Measures a part, such as attention, on the card and on a simulation of the card.

    The simulation uses the figures in `found`. Returns `found` with both results added.
    """
    simulated = _Machine("", found.name, environment=machine.environment).run(part)
    measured: Mapping[str, int] = machine.run(part)
    checks = {words: (size, int(simulated[words])) for words, size in measured.items()}
    return replace(found, checks=found.checks | checks)


def _profile_of(found: CardFile) -> GpuProfile:
    major, minor = found.card["compute_capability"].split(".")
    own = {**found.card, "compute_capability": (int(major), int(minor))}
    return GpuProfile(name=found.name, full_name=found.name, sources={}, **own)


def _kind(name: str) -> str:
    """Guesses a card's kind from its name: "laptop", "desktop", "workstation" or "datacenter"."""
    words = name.casefold()
    if "laptop" in words or "max-q" in words:
        return "laptop"
    if "geforce" in words or "titan" in words:
        return "desktop"
    return "workstation" if "rtx" in words or "quadro" in words else "datacenter"


def _convolutions_of(scripts: Sequence[Path], name: str, machine: _Machine) -> list[str]:
    """Runs `plimsoll predict` on the scripts. Returns descriptions of their convolutions."""
    with ThreadPoolExecutor(max(1, min(_MOST_PREDICTIONS, (os.cpu_count() or 1) // 2))) as pool:
        found = pool.map(partial(_predicted_convolutions, name=name, machine=machine), scripts)
        return list(dict.fromkeys(words for each in found for words in each))


def _predicted_convolutions(script: Path, name: str, machine: _Machine) -> list[str]:
    done = subprocess.run(  # noqa: S603
        [*_PREDICT, "--gpu", name, str(script)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | machine.environment | {"CUDA_VISIBLE_DEVICES": ""},
    )
    if done.returncode not in _HAS_ANSWER or not done.stdout.strip():
        raise InputError(_last_line(done.stderr, f"{script}: no prediction: "))
    found = json.loads(done.stdout.splitlines()[-1])["convolutions"]
    return [words for words in found if CONVOLUTION.fullmatch(words)]
