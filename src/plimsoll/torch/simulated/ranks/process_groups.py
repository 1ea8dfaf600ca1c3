"""torch.distributed's process groups on simulated GPUs.

PyTorch's own functions run, with the program's own rendezvous. Only the backend differs. A backend
of csrc/collectives replaces the backends "nccl" and "gloo". It follows NCCL's rules for memory and
streams, and exchanges data with the other ranks through `exchange`.

WORLD_SIZE may say that a job has several processes, although no launcher started this process. Then
this process runs alone. plimsoll assumes that the missing ranks do the same as this process.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any

from plimsoll.torch.building.versions import follows
from plimsoll.torch.simulated.cuda_collectives import NCCL_VERSION, NcclOptions, add_nccl
from plimsoll.torch.simulated.program_frames import where
from plimsoll.torch.simulated.ranks.backend_methods import name_methods
from plimsoll.torch.simulated.ranks.communicators import machine_of
from plimsoll.torch.simulated.ranks.exchange import Exchange, Group
from plimsoll.torch.simulated.ranks.pretended import running_ranks
from plimsoll.torch.simulated.ranks.symmetric_memory import add_symmetric_memory
from plimsoll.torch.simulated.ranks.waiting import Board

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from plimsoll.torch.simulated.simulation import Simulation

_ARGUMENTS = ("backend", "init_method", "timeout", "world_size", "rank", "store", "group_name")
_OTHERS = "plimsoll assumes that the others do the same"


class ProcessGroups:
    """Makes the backends of this process's groups."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._exchange = Exchange(
            lambda: where(simulation.runners), simulation.communicators, simulation.note_letter
        )
        simulation.library.exchange_by(self._exchange)
        simulation.give_up = self._exchange.give_up
        self._made: Counter[tuple[str | int, ...]] = Counter()
        # Members of the group that PyTorch is making; empty for the default group.
        self._members: list[int] = []

    def load(self, module: ModuleType, execute: Callable[[], None]) -> None:
        """Loads `torch.distributed.distributed_c10d`, and replaces its backends."""
        import torch

        c10d = torch._C._distributed_c10d
        add_nccl(c10d)
        # PyTorch sets fields of a backend's `options`. Nothing reads these fields in a simulation.
        if not hasattr(c10d.Backend, "options"):
            c10d.Backend.options = property(lambda _: NcclOptions())
        name_methods(c10d, self._simulation.communicators)
        add_symmetric_memory(c10d, self._simulation)
        c10d.ProcessGroupNCCL = _named_backend(self, "nccl", c10d.Backend)
        c10d.ProcessGroupGloo = _named_backend(self, "gloo", c10d.Backend)
        execute()
        if hasattr(module.Backend, "_ensure_backend_registered"):
            self._register(module)
        init, new = module.init_process_group, module.new_group
        make_group = module._new_process_group_helper

        def init_process_group(*arguments: Any, **named: Any) -> None:
            given = {**dict(zip(_ARGUMENTS, arguments, strict=False)), **named}
            if self._simulation.pretended_world is not None or _says_nothing_of_others(given):
                given = self._alone(given)
            elif (running := running_ranks()) is not None:
                given = _among(running, given)
            init(**given)
            self._begin(module)

        def new_group(*arguments: Any, **named: Any) -> Any:
            group = new(*arguments, **named)
            _connect_early(group)
            return group

        def new_process_group_helper(
            size: int, rank: int, members: list[int], *arguments: Any, **named: Any
        ) -> Any:
            self._members = [int(member) for member in members]  # also converts NumPy's numbers
            if members:
                self._simulation.groups.append(self._members)
            made = make_group(size, rank, members, *arguments, **named)
            if isinstance(made[0], c10d.ProcessGroup):
                _is_no_gloo(made[0])
            return made

        module._new_process_group_helper = new_process_group_helper  # type: ignore[attr-defined]
        module.init_process_group = init_process_group  # type: ignore[attr-defined]
        module.new_group = new_group  # type: ignore[attr-defined]

    def make(self, name: str, store: Any, rank: int, size: int, options: Any) -> Any:
        """Makes the backend of a process group, and returns its Python object."""
        members = self._members or list(range(size))
        return self._make_among(members, name, store, rank, options)

    def communicator(self, store: Any, rank: int, members: list[int]) -> Any:
        """Returns an NCCL backend for a communicator that the program makes without PyTorch.

        Args:
            store: The store through which the communicator's ranks exchange bytes. No other group
                uses it.
            rank: This process's rank in the communicator.
            members: Each member's rank in the job, by its rank in the communicator.
        """
        self._simulation.groups.append(members)
        return self._make_among(members, "nccl", store, rank, NcclOptions())

    def _make_among(
        self, members: list[int], name: str, store: Any, rank: int, options: Any
    ) -> Any:
        import torch
        from torch._C._distributed_c10d import PrefixStore, ProcessGroup

        size = len(members)
        if self._simulation.world_size is None:
            self._simulation.rank, self._simulation.world_size = rank, size
        running = running_ranks()
        if self._simulation.pretended_world is not None:
            present = frozenset([rank])
        elif running is not None:
            present = frozenset(members.index(each) for each in running if each in members)
        else:
            present = frozenset(range(size))
        label = str(getattr(options, "group_name", "") or "")
        if self._exchange.board is None and len(present) > 1:
            running_members = [members[place] for place in present]
            self._exchange.board = Board(store, members[rank], running_members)
        own = PrefixStore(f"made {self._count(label, members)}", store)
        group = Group(own, rank, members, present, _label(label, size))
        holder = ProcessGroup(store, rank, size)
        torch.ops.plimsoll.add_backend(
            holder.boxed(),
            name,
            self._exchange.add(group),
            [machine_of(member) for member in members],
            bool(getattr(options, "is_high_priority_stream", False)),
            self._is_successor(),
        )
        return holder._get_backend(torch.device("cuda" if name == "nccl" else "cpu"))

    def _count(self, label: str, members: list[int]) -> int:
        """Counts one more group with this name and these members, and returns the new count.

        The count becomes part of the group's keys in the store. So a group does not read what an
        earlier group of the same name and members left there.
        """
        made: tuple[str | int, ...] = (label, *members)
        self._made[made] += 1
        return self._made[made]

    def _is_successor(self) -> bool:
        chosen = os.environ.get("TORCH_DIST_USE_NCCL2", "")
        return follows("has_nccl_successor", self._simulation.version) and chosen != "0"

    def _register(self, module: ModuleType) -> None:
        """Replaces the backends of a PyTorch version that registers them like plugins."""
        from torch._C._distributed_c10d import ProcessGroup

        types = ProcessGroup.BackendType
        for name, kind, devices in (
            ("nccl", types.NCCL, ["cuda"]),
            ("gloo", types.GLOO, ["cpu", "cuda"]),
        ):

            def create(common: Any, options: Any, name: str = name) -> Any:
                options = options or NcclOptions()
                options.global_ranks_in_group = common.global_ranks_in_group
                options.group_name = common.group_id
                return self.make(name, common.store, common.group_rank, common.group_size, options)

            module.Backend.register_backend(
                name, create, extended_api=True, devices=devices, _backend_type=kind
            )

    def _begin(self, module: ModuleType) -> None:
        world = module.GroupMember.WORLD
        self._simulation.rank, self._simulation.world_size = world.rank(), world.size()
        running = running_ranks()
        if self._simulation.pretended_world is not None and world.size() > 1:
            what = f"one of {world.size()} processes runs; {_OTHERS}"
            _say(module.get_backend(), what)
            print(f"plimsoll: {what}", file=sys.stderr)
        elif running is not None:
            some = ", ".join(map(str, running))
            what = f"of {world.size()} ranks, {some} run; {_OTHERS}"
            _say(module.get_backend(), what)
        _connect_early(world)

    def _alone(self, given: dict[str, Any]) -> dict[str, Any]:
        """Returns init_process_group's arguments for a job of which only this process runs."""
        from torch.testing._internal.distributed.fake_pg import FakeStore

        world = given.get("world_size", -1)
        rank = given.get("rank", -1)
        return {
            **{key: value for key, value in given.items() if key != "init_method"},
            "world_size": world if world > 0 else self._simulation.pretended_world or 1,
            "rank": rank if rank >= 0 else int(os.environ.get("RANK", "0")),
            "store": FakeStore(),
        }


@cache
def _store(address: str, port: int, *, is_master: bool) -> Any:
    """Returns the job's store; the same store if the program initializes its groups again."""
    from torch.distributed import TCPStore

    return TCPStore(address, port, is_master=is_master, wait_for_workers=False)


def _among(running: list[int], given: dict[str, Any]) -> dict[str, Any]:
    """Returns init_process_group's arguments for a job of which only some ranks run.

    The store in these arguments does not wait for the other ranks.
    """
    rank = int(os.environ["RANK"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = _store(address, port, is_master=rank == running[0])
    world = int(os.environ["WORLD_SIZE"])
    kept = {key: value for key, value in given.items() if key != "init_method"}
    return {**kept, "store": store, "rank": rank, "world_size": world}


def _says_nothing_of_others(given: dict[str, Any]) -> bool:
    """Returns whether neither a rendezvous nor the number of processes is given."""
    is_named = any(given.get(name) is not None for name in ("init_method", "store"))
    is_counted = given.get("world_size", -1) > 0 or "WORLD_SIZE" in os.environ
    return not is_named and not is_counted


def _named_backend(groups: ProcessGroups, name: str, base: Any) -> Any:
    """Returns a class in place of PyTorch's backend class `name`.

    Its constructor makes one of plimsoll's backends. `isinstance` counts such a backend as an
    instance of the class.
    """

    class Named(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, base) and instance.name() == name

    class NamedBackend(metaclass=Named):
        Options = NcclOptions
        NCCLConfig = NcclOptions.NCCLConfig

        def __new__(cls, store: Any, rank: int, size: int, options: Any = None, **_: Any) -> Any:
            return groups.make(name, store, rank, size, options)

        @staticmethod
        def get_build_nccl_version() -> tuple[int, int, int]:
            return NCCL_VERSION

        @staticmethod
        def get_runtime_nccl_version() -> tuple[int, int, int]:
            return NCCL_VERSION

        @staticmethod
        def create_default_device(*_: Any, **__: Any) -> None:
            """Replaces gloo's function that chooses a network interface; none is needed here."""

        create_device = create_default_device

    NamedBackend.__name__ = NamedBackend.__qualname__ = f"ProcessGroup{name.upper()}"
    return NamedBackend


def _is_no_gloo(group: Any) -> None:
    """Registers plimsoll's gloo backend with the type CUSTOM.

    If the type were GLOO, DDP's logger would cast the backend to PyTorch's C++ class
    ProcessGroupGloo. The backend is no instance of that class.
    """
    import torch

    types = torch._C._distributed_c10d.ProcessGroup.BackendType
    if group.name() != "gloo":
        return
    for device in group._device_types:
        group._register_backend(device, types.CUSTOM, group._get_backend(device))
    group._set_default_backend(types.CUSTOM)


def _connect_early(group: Any) -> None:
    """Makes a group's communicator now, as PyTorch does for a group that is bound to a device."""
    device = getattr(group, "bound_device_id", None)
    if device is not None:
        group._get_backend(device).eager_connect_single_device(device)


def _label(name: str, size: int) -> str:
    """Returns a group's name for messages."""
    return "the default group" if name in ("", "0") else f"a group of {size} ({name})"


def _say(backend: str | None, what: str) -> None:
    import torch

    torch.ops.plimsoll.assume(f"torch.distributed ({backend or 'default'})", what)
