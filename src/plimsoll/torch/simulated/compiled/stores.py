"""Finds the arguments through which a kernel writes, from its code in Triton's IR."""

from __future__ import annotations

import re
from collections import defaultdict

_VALUE = re.compile(r"%[\w$.-]+")
_STORES = {"tt.store": 0, "tt.atomic_rmw": 0, "tt.atomic_cas": 0, "tt.descriptor_store": 0}
"""For each operation that writes to memory: the position of the pointer among its operands."""
_OPERATION = re.compile(
    r'^\s*(?:(?P<results>%[^=]+?) = )?"?(?P<name>[a-z_]+\.[\w.]+)"?(?P<rest>.*)'
)
_ITERATED = re.compile(r"(%[\w$.-]+) = (%[\w$.-]+)")


def stored_arguments(text: str) -> set[int] | None:
    """Returns the numbers of the arguments through which a kernel may write.

    Args:
        text: The kernel's module in Triton's IR.

    Returns:
        The numbers, from 0; None if they are unknown, because the kernel calls other functions or
        has no store that plimsoll knows.
    """
    function = re.search(r"tt\.func public @\S+?\((.*)", text)
    if function is None or "tt.call" in text:
        return None
    arguments = re.findall(r"(%[\w$.-]+): ", function.group(1))
    comes_from: defaultdict[str, set[str]] = defaultdict(set)
    pointers: set[str] = set()
    yielded: set[str] = set()
    iterated: set[str] = set()
    for line in text.splitlines():
        found = _OPERATION.match(line)
        if found is None:
            continue
        name, operands = found["name"], _VALUE.findall(found["rest"])
        if name in _STORES and operands:
            pointers.add(operands[_STORES[name]])
        if name == "scf.yield":
            yielded.update(operands)
        results = _VALUE.findall(found["results"] or "")
        if name.startswith("scf."):
            iterated.update(results)
            for inner, initial in _ITERATED.findall(found["rest"]):
                iterated.add(inner)
                comes_from[inner].add(initial)
        if name != "tt.load":
            for result in results:
                comes_from[result].update(operands)
    for value in iterated:
        comes_from[value] |= yielded
    reached: set[str] = set()
    waiting = list(pointers)
    while waiting:
        value = waiting.pop()
        if value not in reached:
            reached.add(value)
            waiting += comes_from[value]
    stored = {number for number, argument in enumerate(arguments) if argument in reached}
    return stored or None
