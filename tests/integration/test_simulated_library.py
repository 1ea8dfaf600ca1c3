"""Tests that plimsoll refuses a simulated GPU's library if its structures differ from Python's."""

from __future__ import annotations

import ctypes

import pytest

from plimsoll import InputError
from plimsoll.torch.building.compiler import load
from plimsoll.torch.simulated import library
from tests.simulated import on_simulated_gpus

pytest.importorskip("torch")


def replace(old: type[ctypes.Structure], new: type[ctypes.Structure]) -> None:
    structures = (new if one is old else one for one in library.STRUCTURES)
    vars(library)["STRUCTURES"] = tuple(structures)


def widen_a_field() -> None:
    class Site(ctypes.Structure):
        _fields_ = [("stack", ctypes.c_uint64), *library.Site._fields_[1:]]

    replace(library.Site, Site)


def drop_a_sign() -> None:
    class StackTime(ctypes.Structure):
        _fields_ = [("ns", ctypes.c_int64)]

    replace(library.StackTime, StackTime)


def swap_fields() -> None:
    class Counter(ctypes.Structure):
        _fields_ = [(name, ctypes.c_int64) for name in ("peak", "current", "allocated", "freed")]

    replace(library.Counter, Counter)


def lose_a_structure() -> None:
    vars(library)["STRUCTURES"] = library.STRUCTURES[1:]


def lose_a_role() -> None:
    library.ENUMERATIONS["Role"] = ("temporary", "output")


def add_an_enumeration() -> None:
    library.ENUMERATIONS["More"] = ("one",)


CHANGES = {
    change.__name__: change
    for change in (
        *(widen_a_field, drop_a_sign, swap_fields),
        *(lose_a_structure, lose_a_role, add_an_enumeration),
    )
}


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ("widen_a_field", "where Site of 16 bytes: stack=u8@0"),
        ("drop_a_sign", "where StackTime of 8 bytes: ns=i8@0"),
        ("swap_fields", "where Counter of 32 bytes: peak=i8@0"),
        ("lose_a_structure", "it has DeviceProperties of"),
        ("lose_a_role", "where Role: temporary=0"),
        ("add_an_enumeration", "it has nothing, where More: one=0"),
    ],
)
@on_simulated_gpus()
def test_structures_that_do_not_agree_are_one_clear_error(change: str, difference: str) -> None:
    # The process has already loaded this library, so `load` returns that library.
    loaded = load(library.SIMULATED_GPU)
    library.Library(loaded)
    CHANGES[change]()
    with pytest.raises(InputError, match="belongs to another build of plimsoll") as caught:
        library.Library(loaded)
    assert difference in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
