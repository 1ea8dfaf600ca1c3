"""Stands in for vLLM's own all-reduce: a kernel that adds up buffers on the cards of all ranks.

Each rank allocates its buffers with the driver. It also maps the other ranks' buffers, which takes
no memory on the rank's own card. The stand-in does not compute the sums.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll.torch.simulated.simulation import Simulation

_LIBRARY = "_C_custom_ar"
_HANDLE_BYTES = 64
"""The size of CUDA's cudaIpcMemHandle_t."""


def all_reduce_kernels(simulation: Simulation) -> dict[str, dict[str, Callable[..., Any]]]:
    """Returns the operations of the all-reduce by name, for each dispatch key of PyTorch.

    Args:
        simulation: The GPUs of this process.
    """
    memory = simulation.driver_memory
    numbers = count(1)

    def allocate(size: int) -> tuple[int, Any]:
        import torch

        address = memory.allocate(torch.cuda.current_device(), size)
        return address, torch.zeros(_HANDLE_BYTES, dtype=torch.uint8)

    named: dict[str, dict[str, Callable[..., Any]]] = {
        "CUDA": {
            "init_custom_ar": lambda *_: next(numbers),
            "all_reduce": _reduce,
        },
        "CPU": {"open_mem_handle": lambda _: memory.map_other()},
        "CompositeExplicitAutograd": {
            "allocate_shared_buffer_and_handle": allocate,
            "free_shared_buffer": memory.free,
            "register_buffer": _do_nothing,
            "get_graph_buffer_ipc_meta": lambda _: ([], []),
            "register_graph_buffers": _do_nothing,
            "dispose": _do_nothing,
        },
    }
    return {
        on: {f"{_LIBRARY}::{name}": kernel for name, kernel in kernels.items()}
        for on, kernels in named.items()
    }


def _reduce(_: int, given: Any, out: Any, buffer: int, buffer_bytes: int) -> None:
    """Launches the kernel that adds up the ranks' inputs.

    vLLM first copies the input to `buffer`, which all ranks have mapped. If `buffer` is 0, all
    ranks have mapped the input itself, and vLLM makes no copy.
    """
    import torch

    del buffer_bytes
    passes = 3 if buffer else 2
    torch.ops.plimsoll.launch([out], passes * given.nbytes, [], [], given.dtype)


def _do_nothing(*_: Any) -> None:
    """Does nothing: the real function changes only data that vLLM's own kernel reads."""
