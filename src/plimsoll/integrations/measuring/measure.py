"""Measuring a card of this machine: a process for each part, and one file in the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from plimsoll.base.errors import InputError
from plimsoll.engine.gpus import card_files
from plimsoll.engine.gpus.card_files import CardFile
from plimsoll.engine.gpus.profiles import GpuProfile, gpu_profiles
from plimsoll.integrations.measuring import rates
from plimsoll.integrations.measuring.contexts import context_bytes
from plimsoll.integrations.measuring.convolutions import common_convolutions
from plimsoll.integrations.measuring.idle import Idle
from plimsoll.integrations.measuring.text import measured_text
from plimsoll.torch.simulated.ranks.nccl import Bytes, Communicator, Process

_ON_CARD = "plimsoll.integrations.measuring.on_card"
_SAYS = "plimsoll: "
_PREDICT = (sys.executable, "-m", "plimsoll", "predict", "--json")
_MOST_PREDICTIONS = 4
"""How many programs are predicted at a time."""
_MOST_SECONDS = 900
"""After which a part's process is stopped."""
_CONVOLUTION_SECONDS = {False: 60.0, True: 480.0}

Say = Callable[[str], None]


def _say_nothing(line: str) -> None:
    del line


@dataclass(frozen=True)
class Measured:
    """A measurement and its file.

    Attributes:
        found: The figures.
        path: Their file.
        left_out: Convolutions for which there was no time, or that the card refused.
        seconds: How long it took.
        unseen: The reason why NVML did not say who used the card meanwhile; "" where it did.
    """

    found: CardFile
    path: Path
    left_out: int
    seconds: float
    unseen: str

    def __str__(self) -> str:
        return measured_text(self.found, self.path, self.left_out, self.seconds, self.unseen)


@dataclass
class _Machine:
    """How processes are started on the card.

    Attributes:
        gpu: The card's number.
        simulated: The name of the simulated card; "" for the real one.
        idle: Looks for other processes on the card.
        environment: Variables of the processes, beside those of this one.
    """

    gpu: int
    simulated: str
    idle: Idle
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, part: str, gpus: str = "", **arguments: Any) -> Any:
        """Measure a part in a process of its own.

        Raises:
            InputError: If the process fails, or a process of another program used the card.
        """
        found = _result(part, self.start(part, gpus, **arguments))
        self.idle.check()
        return found

    def start(self, part: str, gpus: str = "", **arguments: Any) -> subprocess.Popen[str]:
        command = [sys.executable]
        if self.simulated:
            command += ["-m", "plimsoll", "run", "--simulate", self.simulated]
        environment = os.environ | self.environment
        if not self.simulated:
            environment |= {
                "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
                "CUDA_VISIBLE_DEVICES": gpus or str(self.gpu),
            }
        process = subprocess.Popen(  # noqa: S603
            [*command, "-m", _ON_CARD],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, and what it said tells why
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
    last = (errors.strip() or "its process printed nothing").splitlines()[-1]
    if last.startswith(_SAYS):
        raise InputError(last.removeprefix(_SAYS))
    raise InputError(f"{part.replace('_', ' ')}: nothing could be measured: {last}")


def measure_card(
    scripts: Sequence[Path] = (),
    *,
    gpu: int = 0,
    name: str = "",
    thorough: bool = False,
    simulated: str = "",
    out: Path | None = None,
    say: Say = _say_nothing,
) -> Measured:
    """Measure a card, and keep what was found for later predictions.

    Args:
        scripts: Programs whose convolutions are measured before those of well-known networks.
        gpu: The card's number, as nvidia-smi counts.
        name: Its name in predictions; "" for the one that PyTorch reports.
        thorough: Take ten minutes, not two.
        simulated: The name of a card that is simulated, and measured instead of a real one.
        out: The file; None for this user's own of this card and driver.
        say: Called with what is being measured.

    Raises:
        InputError: If another process uses the card, a script does not exist, or a part cannot be
            measured.
    """
    for script in scripts:
        if not script.is_file():
            raise InputError(f"{script}: no such file")
    with Idle(None if simulated else gpu) as idle:
        return _measure(scripts, _Machine(gpu, simulated, idle), name, thorough, out, say)


def _measure(
    scripts: Sequence[Path],
    machine: _Machine,
    name: str,
    thorough: bool,
    out: Path | None,
    say: Say,
) -> Measured:
    began = time.monotonic()
    found, cards = _basics(machine, name, say)
    with tempfile.TemporaryDirectory() as folder:
        # From here on predictions for the card use its new figures, and no older file.
        machine.environment[card_files.FOLDER_VARIABLE] = folder
        card_files.write_card(found, Path(folder, "card.toml"))
        say(f"{found.name}: NCCL's memory")
        found = _with_nccl(found, machine, cards, folder)
        say(f"{found.name}: convolutions")
        found, left_out = _with_convolutions(found, machine, scripts, thorough=thorough)
        say(f"{found.name}: attention")
        found = replace(found, checks=found.checks | _attention(machine, found.name))
    path = out or card_files.file_of(found.name, found.driver)
    card_files.write_card(found, path)
    return Measured(found, path, left_out, time.monotonic() - began, machine.idle.unseen)


def _basics(machine: _Machine, name: str, say: Say) -> tuple[CardFile, int]:
    """The card without what NCCL and kernels take, and how many cards there are."""
    say("the card")
    about = machine.run("card")
    if not about:
        raise InputError(
            "PyTorch sees no GPU here, so there is none to measure; "
            "`plimsoll measure --simulate H100` shows what this does"
        )
    own_name, cards = str(about.pop("name")), int(about.pop("count"))
    torch, cudnn = about.pop("torch"), about.pop("cudnn")
    name = name or own_name
    say(f"{name}: its context")
    parts = machine.run("contexts", before_bytes=machine.idle.before_bytes)
    say(f"{name}: how fast it is")
    speeds = machine.run("rates")
    known = _known(name)
    card = about | {
        "memory_bandwidth_bytes_per_s": speeds["copy_bytes_per_s"] / rates.REACHED_OF_BANDWIDTH,
        "bus_bytes_per_s": speeds["bus_bytes_per_s"],
        "fp32_flops": speeds["fp32_flops"] / rates.REACHED_OF_FP32_FLOPS,
        "tensor_flops": speeds["tensor_flops"] / rates.REACHED_OF_TENSOR_FLOPS,
        "context_bytes": context_bytes(parts),
        "kind": _kind(name) if known is None else known.kind,
        "nvlinks": 0 if known is None else known.nvlinks,
        "nccl_process_bytes": 0,
        "context_parts": parts,
    }
    driver = "" if machine.simulated else card_files.driver_version()
    date = datetime.now(UTC).date().isoformat()
    return CardFile(name, driver, date, torch, cudnn, card, speeds), cards


def _with_nccl(found: CardFile, machine: _Machine, cards: int, folder: str) -> CardFile:
    profile = _profile_of(found)
    card = found.card | {"nccl_process_bytes": _nccl_process_bytes(machine, profile)}
    checks = _two_ranks(machine, profile, folder) if cards > 1 else {}
    return replace(found, card=card, checks=checks)


def _with_convolutions(
    found: CardFile, machine: _Machine, scripts: Sequence[Path], *, thorough: bool
) -> tuple[CardFile, int]:
    """The card with its convolutions, and how many of the scripts' are not among them."""
    own = _convolutions_of(scripts, found.name, machine)
    wanted = dict.fromkeys([*own, *common_convolutions(thorough=thorough)])
    measured = machine.run(
        "convolutions", convolutions=list(wanted), seconds=_CONVOLUTION_SECONDS[thorough]
    )
    sizes = {words: tuple(each) for words, each in measured.items()}
    return replace(found, convolutions=sizes), sum(words not in sizes for words in own)


def _known(name: str) -> GpuProfile | None:
    """The profile of a card, if there is one."""
    try:
        found = gpu_profiles(name)
    except InputError:
        return None
    return next((each for each in found if name in (each.full_name, each.name)), None)


def _profile_of(found: CardFile) -> GpuProfile:
    major, minor = found.card["compute_capability"].split(".")
    own = {**found.card, "compute_capability": (int(major), int(minor))}
    return GpuProfile(name=found.name, full_name=found.name, sources={}, **own)


def _kind(name: str) -> str:
    """Guesses from an unknown card's name where it is built in."""
    words = name.casefold()
    if "laptop" in words or "max-q" in words:
        return "laptop"
    if "geforce" in words or "titan" in words:
        return "desktop"
    return "workstation" if "rtx" in words or "quadro" in words else "datacenter"


# --- NCCL -----------------------------------------------------------------------------------------


def _nccl_process_bytes(machine: _Machine, card: GpuProfile) -> int:
    tables = Communicator(card, (0,), 0).begin()
    return max(0, int(machine.run("one_rank")) - tables.high)


def _two_ranks(machine: _Machine, card: GpuProfile, folder: str) -> dict[str, tuple[int, int]]:
    """Returns the memory that two ranks take, on this card and its neighbour; and the rule's."""
    if machine.simulated:
        return {}
    store = str(Path(folder, "store"))
    gpus = f"{machine.gpu},{machine.gpu ^ 1}"
    ranks = [machine.start("two_ranks", gpus, rank=rank, store_file=store) for rank in (0, 1)]
    try:
        found, _ = (_result("two_ranks", process) for process in ranks)
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    return {
        f"NCCL, two ranks: {name}": (int(found[name]), size)
        for name, size in _foreseen(card).items()
    }


def _foreseen(card: GpuProfile) -> dict[str, int]:
    made, process = Communicator(card, (0, 0), 0), Process(card)
    total, sizes = made.begin() + process.begin(), dict[str, Bytes]()
    sizes["communicator"] = total
    total = total + made.connect_ring() + process.launch("ring")
    sizes["all_reduce"] = total
    sizes["all_to_all"] = total + made.connect((1,), (1,)) + process.launch("to 1 from 1")
    return {name: (size.low + size.high) // 2 for name, size in sizes.items()}


# --- predictions -----------------------------------------------------------------------------


def _convolutions_of(scripts: Sequence[Path], name: str, machine: _Machine) -> list[str]:
    """The convolutions of programs, in words, as they run without a GPU."""
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
    if done.returncode == 2:
        raise InputError(done.stderr.strip().splitlines()[-1].removeprefix(_SAYS))
    return list(json.loads(done.stdout.splitlines()[-1])["convolutions"])


def _attention(machine: _Machine, name: str) -> dict[str, tuple[int, int]]:
    """Returns the memory that attention took, and the simulated card's."""
    foreseen = _Machine(0, name, Idle(None), machine.environment).run("attention")
    measured: Mapping[str, int] = machine.run("attention")
    return {words: (size, int(foreseen[words])) for words, size in measured.items()}
