"""One process of a distributed job on simulated GPUs.

NCCL is not there, nor are the other processes. PyTorch's own `fake` process group stands for them:
a collective returns at once, with what this process brought in place of what others would have.
So memory is that of one rank out of WORLD_SIZE, whatever shards or gathers its tensors. One process
of one has nobody to wait for, and what a collective gives it is what it brought.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.cuda_collectives import add_nccl

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_FAKE = "fake"


def pretend_other_processes(module: ModuleType, execute: Callable[[], None]) -> None:
    """Load `torch.distributed.distributed_c10d`, with groups of processes that do not exist."""
    import torch

    add_nccl(torch._C._distributed_c10d)
    execute()
    init, new = module.init_process_group, module.new_group

    def init_process_group(
        backend: str | None = None,
        init_method: str | None = None,
        timeout: Any = None,
        world_size: int = -1,
        rank: int = -1,
        store: Any = None,
        group_name: str = "",
        pg_options: Any = None,
        device_id: Any = None,
        **rest: Any,
    ) -> None:
        del init_method, store, pg_options, device_id  # of the processes that are not there
        from torch.testing._internal.distributed.fake_pg import FakeStore

        count = world_size if world_size > 0 else _from_environment("WORLD_SIZE", 1)
        init(
            _FAKE,
            timeout=timeout,
            world_size=count,
            rank=rank if rank >= 0 else _from_environment("RANK", 0),
            store=FakeStore(),
            group_name=group_name,
            **rest,
        )
        if count > 1:
            _say(backend, count)

    def new_group(
        ranks: Any = None,
        timeout: Any = None,
        backend: Any = None,
        pg_options: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        del backend, pg_options
        kwargs.pop("device_id", None)
        return new(ranks, timeout, _FAKE, None, *args, **kwargs)

    module.init_process_group = init_process_group  # type: ignore[attr-defined]
    module.new_group = new_group  # type: ignore[attr-defined]


def _from_environment(name: str, otherwise: int) -> int:
    return int(os.environ.get(name, otherwise))


def _say(backend: str | None, count: int) -> None:
    import torch

    what = f"one process of {count} runs; what others would send is pretended"
    torch.ops.plimsoll.assume(f"torch.distributed ({backend or 'default'})", what)
    print(f"plimsoll: {what}", file=sys.stderr)
