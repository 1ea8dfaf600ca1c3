"""Tests files of measured cards: written files are read back, and invalid files are refused."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.base.errors import InputError
from plimsoll.base.telemetry.nvml import GpuReading, Reading
from plimsoll.base.units import GiB, MiB
from plimsoll.engine.gpus import card_files, profiles
from plimsoll.engine.gpus.card_files import (
    CONTEXT_PARTS,
    CardFile,
    measured_cards,
    read_card,
    write_card,
)
from plimsoll.engine.gpus.profiles import gpu_profile
from plimsoll.integrations.measuring import idle
from plimsoll.integrations.measuring.idle import CardInUseError, Idle

CONVOLUTION = "float32 8x3x9x9 by 4x3x3x3 stride 1x1 padding 1x1 dilation 1x1 groups 1"
CARD = CardFile(
    name="Pretended 24GB",
    driver="580.1",
    date="2026-11-27",
    torch="2.11.0",
    cudnn="9.19.0",
    card={
        **dict.fromkeys(card_files._COUNTS, 1 << 20),
        **dict.fromkeys(card_files._SPEEDS, 1e12),
        "total_bytes": 24 * GiB,
        "compute_capability": "8.9",
        "kind": "desktop",
        "nvlinks": 0,
        "nccl_process_bytes": 170 * MiB,
        "context_parts": {"made": 300 * MiB, **dict.fromkeys(CONTEXT_PARTS, 10 * MiB)},
    },
    rates={"copy_bytes_per_s": 9e11},
    convolutions={CONVOLUTION: (1, 2, 3)},
    searches={CONVOLUTION: ((9, 1, 2, 3), (9, 1, 1, 1), (0, 0, 0, 0))},
    checks={"attention": (5, 5)},
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(card_files.FOLDER_VARIABLE, str(tmp_path / "cards"))
    return tmp_path / "cards"


def test_what_is_written_is_read_again(folder: Path) -> None:
    write_card(CARD, folder / "card.toml")
    assert read_card(folder / "card.toml") == CARD
    assert measured_cards() == [CARD]


def test_without_a_folder_no_card_was_measured() -> None:
    assert measured_cards() == []


def test_of_several_files_of_a_card_this_machines_driver_is_taken_or_the_newest(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = replace(CARD, driver="590.2", date="2026-12-01")
    for each in (CARD, newer):
        write_card(each, card_files.file_of(each.name, each.driver))
    monkeypatch.setattr(card_files, "driver_version", lambda: "")
    assert measured_cards() == [newer]
    monkeypatch.setattr(card_files, "driver_version", lambda: "580.1")
    assert measured_cards() == [CARD]
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('"8.9"', '"nine"', "card.compute_capability is not as 9.0"),
        ('"desktop"', '"toaster"', "card.kind is none of"),
        ("multiprocessors = ", "multiprocessors = -", "multiprocessors is no whole number from 1"),
        ("[1, 2, 3]", "[1, 2]", "are not 3 numbers of bytes"),
        ("[[9, 1, 2, 3], ", "[", "are not the searches of three passes"),
        ("[9, 1, 2, 3]", "[9, 3, 2, 1]", "are not from the least to the most"),
        ("[9, 1, 2, 3]", "[9, 1, 2]", "are not 4 numbers of bytes"),
        ("float32 8x3", "float128 8x3", "is no convolution"),
        ("fp32_flops = ", "fp32_flops = nan #", "fp32_flops is no positive number"),
        ('name = "Pretended 24GB"', 'name = "GPU"', "measured.name has no letters or digits of"),
        ('name = "Pretended 24GB"', 'name = "A:B"', "measured.name has a colon"),
        ("fourier = ", "fouriers = ", "card.context_parts has other parts"),
        ("[card]", "[card", ""),
    ],
)
def test_what_is_no_card_is_refused_in_one_line(folder: Path, old: str, new: str, why: str) -> None:
    path = folder / "card.toml"
    write_card(CARD, path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError) as refused:
        measured_cards()
    said = str(refused.value)
    assert said.startswith(f"{path} is no file of a card: ")
    assert why in said
    assert said.endswith("; measure the card again, or remove the file")
    assert "\n" not in said


@given(st.binary(max_size=400) | st.text(max_size=400).map(str.encode))
def test_any_bytes_are_a_card_or_refused(tmp_path_factory: Any, content: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "card.toml"
    path.write_bytes(content)
    with pytest.raises(InputError):
        read_card(path)


def _gpus(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "plimsoll", "gpus", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "", card_files.FOLDER_VARIABLE: str(folder)},
    )


def test_gpus_says_which_cards_are_measured_and_where_from(folder: Path) -> None:
    write_card(CARD, folder / "own.toml")
    write_card(replace(CARD, name="NVIDIA GeForce RTX 4090"), folder / "known.toml")
    own = json.loads(_gpus(folder, "pretended", "--json").stdout)
    assert own["name"] == own["full_name"] == "Pretended 24GB"
    assert own["measured"] == "plimsoll measure, 2026-11-27, driver 580.1, PyTorch 2.11.0"
    assert own["convolutions"] == 1
    known = [json.loads(line) for line in _gpus(folder, "RTX 4090", "--json").stdout.splitlines()]
    assert [each["measured"] != "" for each in known if each["name"] == "RTX 4090"] == [True]
    assert "by the project" in _gpus(folder, "H200").stdout


def test_a_measured_card_goes_before_others_of_its_names(folder: Path) -> None:
    names = ("4090", "NVIDIA A100 80GB PCIe", "Foo", "RTX Foo", "Größe 7 🚀")
    for number, name in enumerate(names):
        write_card(replace(CARD, name=name), folder / f"{number}.toml")
    try:
        for cached in (profiles._profiles, profiles._names):
            cached.cache_clear()
        assert gpu_profile("RTX 4090").measured, "the built-in card of this name"
        for name in names:
            assert gpu_profile(name).measured
        assert not gpu_profile("A100-80GB").measured, "another card, of which that is an alias"
        assert gpu_profile("A100-80GB").nvlinks == 12
    finally:
        for cached in (profiles._profiles, profiles._names):
            cached.cache_clear()


def test_a_broken_file_ends_a_command_in_one_line(folder: Path) -> None:
    folder.mkdir()
    (folder / "card.toml").write_text("no toml")
    done = _gpus(folder)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


# --- other processes on the card ---------------------------------------------------------------


class _Nvml:
    """Takes the place of NVML; each reading of the card reports the next value of `used`."""

    def __init__(self, *used: int, processes: dict[int, int | None] | None = None) -> None:
        self._used = list(used)
        self._processes = processes

    def read(self) -> Reading:
        used = self._used.pop(0) if len(self._used) > 1 else self._used[0]
        others = GpuReading(0, "other", "Another", 24 * GiB, 20 * GiB, 0.0, {3: 20 * GiB})
        ours = GpuReading(1, UUID, "A card", 24 * GiB, used, 0.0, self._processes)
        return Reading((others, ours))


UUID = "12-ab"


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setattr(idle, "_PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(idle, "cache_folder", lambda: tmp_path)

    def set_card(*used: int, processes: dict[int, int | None] | None = None) -> None:
        monkeypatch.setattr(idle, "Nvml", lambda: _Nvml(*used, processes=processes))

    return set_card


def test_a_card_that_is_in_use_is_refused(card: Any) -> None:
    card(4 * GiB, processes={17: 4 * GiB})
    with pytest.raises(CardInUseError, match=r"GPU 1 .*process 17 has 4\.00 GiB; end"), Idle(UUID):
        pass
    card(4 * GiB)
    with pytest.raises(CardInUseError, match="processes that plimsoll cannot see"), Idle(UUID):
        pass


def test_a_desktop_may_be_drawn_with_it(card: Any) -> None:
    card(300 * MiB, processes={5: 120 * MiB, 6: 90 * MiB})
    with Idle(UUID) as found:
        assert found.before_bytes == 300 * MiB
        assert found.unseen == ""


def test_a_process_that_begins_meanwhile_is_noticed(card: Any) -> None:
    card(100 * MiB, 100 * MiB, 3 * GiB)
    with Idle(f"GPU-{UUID.upper()}") as found:
        assert found.before_bytes == 100 * MiB
        found.check()
        with pytest.raises(CardInUseError, match="another process began to use the card meanwhile"):
            found.check()


def test_what_an_ended_process_leaves_for_a_moment_is_no_use(card: Any) -> None:
    card(0, 2 * GiB, 0)
    with Idle(UUID) as found:
        found.check()


def test_a_card_that_nvml_does_not_list_is_not_seen(card: Any) -> None:
    card(0)
    with Idle("unknown") as found:
        found.check()
        assert found.unseen == "NVML does not list the card"


def test_two_measurements_of_a_card_exclude_each_other(card: Any) -> None:
    card(0)
    with Idle(UUID):
        with pytest.raises(CardInUseError, match="another plimsoll measures this card"), Idle(UUID):
            pass
        with Idle("unknown"):
            pass
    with Idle(UUID):
        pass
