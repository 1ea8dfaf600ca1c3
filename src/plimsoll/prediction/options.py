"""The options of a simulation, which `predict`, `fit` and `run --simulate` share."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from plimsoll import _core
from plimsoll.base.errors import InputError
from plimsoll.base.script_file import script_file
from plimsoll.base.torch_environment import NO_CACHING, is_caching_forbidden
from plimsoll.base.units import format_size, parse_memory
from plimsoll.engine.gpus.profiles import gpu_profile
from plimsoll.engine.plans.plan_file import read_plan
from plimsoll.engine.plans.program_plan import require_elastic
from plimsoll.engine.protocol import SimulatedAllocatorName, SpillPolicyName
from plimsoll.engine.simulator.machine import DriverName
from plimsoll.offloading.tiers.limits import Tiers
from plimsoll.prediction.job_shape import DISTINCT, JobShape
from plimsoll.prediction.recipes.served import engine_cards, engine_of_script
from plimsoll.prediction.request import Request
from plimsoll.prediction.used_memory import used_memory
from plimsoll.torch.building.versions import rules_version
from plimsoll.torch.simulated.setup import Setup, UnknownName, ValuesName
from plimsoll.torch.wheel.own_allocator import require_cuda_build

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

_MOST_GPUS = 64
_VALUES: dict[str, ValuesName] = {"auto": "automatic", "real": "real", "none": "none"}
_CONF = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a simulation. `plimsoll.predict` describes each."""

    gpu: str = "H100"
    gpus: int | None = None
    driver: str = "linux"
    conf: str = ""
    allocator: str = "native"
    plan: str | PathLike[str] | None = None
    policy: str | None = None
    dedicated: int | str | None = None
    shared: int | str | None = None
    host_memory: int | str | None = None
    values: str = "auto"
    unknown: str = "balanced"
    steps: int | None = None
    at_most_events: int | None = None
    keep_writes: bool = False
    nproc_per_node: int | None = None
    nnodes: int = 1
    world: int | None = None
    ranks: str | None = None
    used: int | str | None = None
    network: bool = False

    def request(
        self,
        script: str | PathLike[str],
        arguments: Sequence[str] = (),
        *,
        is_module: bool = False,
    ) -> Request:
        """Checks all options, and returns the request for the process that runs the script.

        Raises:
            InputError: As for `predict`.
        """
        if not is_module:
            script = script_file(os.fspath(script))
        shape = self._shape()
        engine = engine_of_script(Path(script))
        own = 1 if engine is None else engine_cards(engine, arguments)
        gpus = (shape.nproc_per_node or own) if self.gpus is None else self.gpus
        if not 1 <= gpus <= _MOST_GPUS:
            raise InputError(f"a machine has 1 to {_MOST_GPUS} GPUs, not {gpus}")
        _check_name("driver", self.driver, get_args(DriverName))
        wheel = self._takes_wheel()
        tiers = Tiers.parse(self.policy, self.dedicated, self.shared)
        used = used_memory(self.used)
        self._check_room(tiers, used)
        driver, policy = self._who_spills(tiers)
        _check_name("choice of values", self.values, tuple(_VALUES))
        unknown, seed = self._parsed_unknown()
        plan = self._checked_plan()
        if self.at_most_events is not None and self.at_most_events < 1:
            raise InputError(f"at least 1 event must be allowed, not {self.at_most_events}")
        if self.steps is not None and self.steps < 1:
            raise InputError(f"at least 1 step must be made, not {self.steps}")
        return Request(
            script=str(script),
            arguments=list(arguments),
            setup=Setup(
                gpus=(self.gpu,) * gpus,
                driver=driver,
                conf=self._checked_conf(),
                allocator="native" if wheel else self._used_allocator(),  # type: ignore[arg-type]
                wheel=wheel,
                plan=plan,
                policy=policy,
                dedicated_bytes=tiers.dedicated_bytes,
                used_bytes=used,
                host_memory_bytes=self._host_memory(tiers, policy),
                values=_VALUES[self.values],
                unknown=unknown,
                seed=seed,
            ),
            is_module=is_module,
            at_most_events=self.at_most_events,
            steps=self.steps,
            keep_writes=self.keep_writes,
            network=self.network,
            nproc_per_node=shape.nproc_per_node,
            nnodes=shape.nnodes,
            ranks=None if shape.ranks == DISTINCT else shape.ranks,
            runs_distinct=shape.ranks == DISTINCT,
        )

    def _used_allocator(self) -> str:
        """Returns the allocator that PyTorch uses under the present environment."""
        return "uncached" if is_caching_forbidden() else self.allocator

    def _takes_wheel(self) -> bool:
        if self._used_allocator() == "wheel":
            require_cuda_build()
            return True
        _check_name("allocator", self.allocator, get_args(SimulatedAllocatorName))
        return False

    def _checked_plan(self) -> str | None:
        if self.plan is None:
            return None
        if is_caching_forbidden():
            raise InputError(f"{NO_CACHING}=1 leaves no request that could follow a plan: unset it")
        require_elastic(self.allocator)
        read_plan(self.plan)  # an invalid plan raises an error here, before the first run
        return str(Path(self.plan).absolute())

    def _shape(self) -> JobShape:
        shape = JobShape.parse(self.nproc_per_node, self.nnodes, self.world, self.ranks)
        if shape.nproc_per_node is not None and self.at_most_events is not None:
            raise InputError("--at-most-events does not go with a job: the other ranks would wait")
        return shape

    def _parsed_unknown(self) -> tuple[UnknownName, int]:
        name, has_seed, seed = self.unknown.partition(":")
        if name == "seed" and has_seed:
            if not (seed.isascii() and seed.isdecimal() and int(seed) < 1 << 64):
                raise InputError(f"a seed is a number, as in seed:1, not {self.unknown!r}")
            return "balanced", int(seed)
        if self.unknown not in get_args(UnknownName):
            raise InputError(
                f"unknown data is taken to be balanced, most, least or seed:N, not {self.unknown!r}"
            )
        return self.unknown, 0  # type: ignore[return-value]

    def _check_room(self, tiers: Tiers, used: int) -> None:
        profile = gpu_profile(self.gpu)
        room = profile.total_bytes - profile.context_bytes - used
        if room <= 0:
            raise InputError(
                f"other programs use {format_size(used)}, which leaves nothing of "
                f"{profile.name}: it has {format_size(profile.total_bytes)}, "
                f"{format_size(profile.context_bytes)} of it for a context"
            )
        beside = "beside its context" if not used else "beside its context and what others use"
        if tiers.dedicated_bytes is not None and tiers.dedicated_bytes > room:
            raise InputError(
                f"{format_size(tiers.dedicated_bytes)} of dedicated memory is more than "
                f"{profile.name} has {beside}: {format_size(room)}"
            )

    def _who_spills(self, tiers: Tiers) -> tuple[DriverName, SpillPolicyName]:
        """Returns the driver and the policy.

        If memory spills under PyTorch's allocator, the driver is that of Windows.
        """
        if self.driver == "wddm":
            if tiers.policy == "strict":
                raise InputError("the wddm driver spills by itself; strict is for the linux driver")
            return "wddm", "spill"
        if tiers.policy == "spill":
            return "linux" if self._used_allocator() == "elastic" else "wddm", "spill"
        return "linux", "strict"

    def _host_memory(self, tiers: Tiers, policy: SpillPolicyName) -> int | None:
        if tiers.shared_bytes is None:
            return None if self.host_memory is None else parse_memory(self.host_memory)
        if policy == "strict":
            raise InputError("shared memory is for requests that spill; choose the policy spill")
        if self.host_memory is not None:
            raise InputError("shared memory is half of the host's; give one of them")
        return 2 * tiers.shared_bytes

    def _checked_conf(self) -> str:
        """Returns `conf`, or the environment's setting if `conf` is empty.

        Raises:
            InputError: If the installed PyTorch would refuse the setting.
        """
        conf = self.conf or next((os.environ[name] for name in _CONF if name in os.environ), "")
        try:
            _core.AllocatorConfig.parse(conf, rules_version())
        except _core.ConfigError as error:
            raise InputError(f"the given configuration: {error}") from None
        return conf


def _check_name(what: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        *others, last = known
        raise InputError(f"unknown {what} {name!r}; there are {', '.join(others)} and {last}")
