"""Checks PyTorch on simulated GPUs, while one of its functions fails.

    python broken_torch.py FUNCTION LIBRARY

FUNCTION is for example torch.Tensor.backward; LIBRARY is plimsoll's library that provides the
simulated devices.
"""

import operator
import sys
from typing import Any

from plimsoll.torch.simulated import check, patches

name, library = sys.argv[1:]


def broken(torch: Any, _: object) -> None:
    """Makes the PyTorch function that the command line names raise an error."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("false INTERNAL ASSERT FAILED at file.cpp:1\nmore")

    owner, _dot, function = name.removeprefix("torch.").rpartition(".")
    setattr(operator.attrgetter(owner)(torch), function, fail)


vars(patches)["patch"] = broken
sys.argv[1:] = [library]
check.main()
