"""The library of the simulated GPU and its other half in Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulated import assert_runs

pytest.importorskip("torch")

# A library that the process has loaded already is the same one when it is loaded again.
CHECK = """
import ctypes
from plimsoll import InputError
from plimsoll.torch.building.compiler import load
from plimsoll.torch.simulated import library

lib = load(library.SIMULATED_GPU)
library.Library(lib)
{change}
try:
    library.Library(lib)
except InputError as error:
    assert "is of another plimsoll" in str(error), error
    assert "{difference}" in str(error), error
    assert len(str(error).splitlines()) == 1, error
else:
    raise AssertionError("it is used all the same")
"""

WIDER = """
class Site(ctypes.Structure):
    _fields_ = [("stack", ctypes.c_uint64), *library.Site._fields_[1:]]
library.STRUCTURES = tuple(Site if s is library.Site else s for s in library.STRUCTURES)
"""
SIGNED = """
class LateRole(ctypes.Structure):
    _fields_ = [*library.LateRole._fields_[:2], ("role", ctypes.c_uint32)]
library.STRUCTURES = tuple(
    LateRole if s is library.LateRole else s for s in library.STRUCTURES
)
"""
SWAPPED = """
class Counter(ctypes.Structure):
    _fields_ = [(n, ctypes.c_int64) for n in ("peak", "current", "allocated", "freed")]
library.STRUCTURES = tuple(Counter if s is library.Counter else s for s in library.STRUCTURES)
"""


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (WIDER, "where Site of 16 bytes: stack=u8@0"),
        (SIGNED, "where LateRole of 16 bytes: serial=u8@0 device=i4@8 role=u4@12"),
        (SWAPPED, "where Counter of 32 bytes: peak=i8@0"),
        ("library.STRUCTURES = library.STRUCTURES[1:]", "it has DeviceProperties of"),
        ("library.ENUMERATIONS['Role'] = ('temporary', 'output')", "where Role: temporary=0"),
        ("library.ENUMERATIONS['More'] = ('one',)", "it has nothing, where More: one=0"),
    ],
)
def test_structures_that_do_not_agree_are_one_clear_error(
    tmp_path: Path, change: str, difference: str
) -> None:
    assert_runs(tmp_path, CHECK.format(change=change, difference=difference))
