"""Communication between the devices of one process, for torch.nn.DataParallel and NCCL."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.cuda_missing import missing_class, not_simulated

if TYPE_CHECKING:
    from types import ModuleType

NCCL_VERSION = (2, 30, 7)
"""The version of NCCL that PyTorch 2.15 is built with."""
_UNSET = -(1 << 31)  # ncclConfig_t's NCCL_CONFIG_UNDEF_INT


def collective_functions() -> dict[str, Any]:
    """Maps names in `torch._C` to the functions that copy tensors between a process's GPUs."""

    def broadcast(tensor: Any, devices: list[int]) -> list[Any]:
        return [tensor.to(f"cuda:{device}") for device in devices]

    def broadcast_coalesced(tensors: list[Any], devices: list[int], _: int) -> list[list[Any]]:
        return [[tensor.to(f"cuda:{device}") for tensor in tensors] for device in devices]

    def scatter(
        tensor: Any, devices: list[int], sizes: list[int] | None, dim: int, streams: Any
    ) -> tuple[Any, ...]:
        parts = tensor.split(sizes, dim) if sizes else tensor.chunk(len(devices), dim)
        return tuple(p.to(f"cuda:{d}") for p, d in zip(parts, devices, strict=False))

    def gather(tensors: list[Any], dim: int, destination: int | None) -> Any:
        import torch

        device = "cpu" if destination == -1 else f"cuda:{destination or 0}"
        return torch.cat([tensor.to(device) for tensor in tensors], dim)

    def broadcast_out(tensor: Any, out: list[Any]) -> list[Any]:
        for one in out:
            one.copy_(tensor)
        return out

    def scatter_out(tensor: Any, out: list[Any], dim: int, streams: Any) -> list[Any]:
        parts = tensor.split([one.size(dim) for one in out], dim)
        for one, part in zip(out, parts, strict=True):
            one.copy_(part)
        return out

    def gather_out(tensors: list[Any], out: Any, dim: int) -> Any:
        parts = out.split([tensor.size(dim) for tensor in tensors], dim)
        for part, tensor in zip(parts, tensors, strict=True):
            part.copy_(tensor)
        return out

    return {
        **_nccl_functions(),
        "_broadcast": broadcast,
        "_broadcast_out": broadcast_out,
        "_scatter_out": scatter_out,
        "_gather_out": gather_out,
        "_broadcast_coalesced": broadcast_coalesced,
        "_scatter": scatter,
        "_gather": gather,
    }


def _nccl_functions() -> dict[str, Any]:
    """Returns the functions of torch.cuda.nccl. Instead of a sum, they return one GPU's input."""
    major, minor, patch = NCCL_VERSION

    def assume_sum(inputs: list[Any]) -> None:
        import torch

        if len(inputs) > 1:
            what = "plimsoll leaves out the summands of the process's other GPUs"
            torch.ops.plimsoll.assume("torch.cuda.nccl", what)

    def all_reduce(inputs: Any, outputs: Any, op: int, streams: Any, comms: Any) -> None:
        assume_sum(inputs)
        for given, out in zip(inputs, outputs, strict=True):
            if out is not given:
                out.copy_(given)

    def reduce(inputs: Any, output: Any, root: int, op: int, streams: Any, comms: Any) -> None:
        assume_sum(inputs)
        if output is not inputs[root]:
            output.copy_(inputs[root])

    def broadcast(inputs: Any, root: int, streams: Any, comms: Any) -> None:
        for place, tensor in enumerate(inputs):
            if place != root:
                tensor.copy_(inputs[root])

    def all_gather(inputs: Any, outputs: Any, streams: Any, comms: Any) -> None:
        for out in outputs:
            for part, given in zip(out.view(len(inputs), -1), inputs, strict=True):
                part.copy_(given.reshape(-1))

    def reduce_scatter(inputs: Any, outputs: Any, op: int, streams: Any, comms: Any) -> None:
        assume_sum(inputs)
        for place, (given, out) in enumerate(zip(inputs, outputs, strict=True)):
            out.view(-1).copy_(given.reshape(len(outputs), -1)[place])

    return {
        "_nccl_version": lambda: (major << 32) | (minor << 16) | patch,
        "_nccl_version_suffix": lambda: b"",
        "_nccl_unique_id": lambda: os.urandom(128),
        "_nccl_init_rank": not_simulated("_nccl_init_rank"),
        "_nccl_all_reduce": all_reduce,
        "_nccl_reduce": reduce,
        "_nccl_broadcast": broadcast,
        "_nccl_all_gather": all_gather,
        "_nccl_reduce_scatter": reduce_scatter,
    }


class _NcclConfig:
    """Stands in for ProcessGroupNCCL.NCCLConfig."""

    def __init__(self) -> None:
        self.comm_name: str | None = None
        self.net_name: str | None = None
        self.blocking = self.cga_cluster_size = self.min_ctas = self.max_ctas = _UNSET
        self.split_share = self.traffic_class = self.collnet_enable = _UNSET
        self.cta_policy = self.nvls_ctas = self.max_p2p_peers = _UNSET


class NcclOptions:
    """Stands in for ProcessGroupNCCL.Options; only the stream's priority has an effect."""

    NCCLConfig = _NcclConfig

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self.backend = "nccl"
        self.config = _NcclConfig()
        self.is_high_priority_stream = is_high_priority_stream
        self.global_ranks_in_group: list[int] = []
        self.group_name = ""
        self.split_color = -2
        self.split_from: Any = None
        self._timeout = timedelta(minutes=10)


def add_nccl(c10d: ModuleType) -> None:
    """Adds to `torch._C._distributed_c10d` the names that only a build with NCCL has.

    Programs look for these names and make `Options`. Programs cannot instantiate the backend
    classes, because `ranks.process_groups` makes the process groups.
    """
    for name in ("ProcessGroupNCCL2", "ProcessGroupNCCLLazy"):
        backend = missing_class(name, base=c10d.Backend, where="torch.distributed")
        backend.Options = NcclOptions
        setattr(c10d, name, backend)
    version = ".".join(map(str, NCCL_VERSION))
    c10d.__dict__.update(
        {
            "_DEFAULT_PG_NCCL_TIMEOUT": timedelta(minutes=10),
            "_is_nvshmem_available": lambda: False,
            "_get_intra_node_comm_usage_counter": lambda: 0,
            "_dump_nccl_trace_json": lambda *_, **__: b'{"version": "' + version.encode() + b'"}',
            "_reset_fr_recording_nccl": lambda: None,
        }
    )
    for name in (
        *("_dump_nccl_trace", "_hash_tensors", "_nvshmemx_cumodule_init"),
        *("_register_external_nccl_comm", "_unregister_external_nccl_comm"),
    ):
        setattr(c10d, name, not_simulated(f"_distributed_c10d.{name}"))
