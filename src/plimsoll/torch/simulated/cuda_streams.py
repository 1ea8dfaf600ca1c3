"""Streams and events of torch.cuda: torch.Stream and torch.Event do the work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from plimsoll.torch.simulated.simulation import Simulation

_CUDA = 1  # PyTorch's number of the type of device


def stream_functions(
    c: ModuleType,
    simulation: Simulation,
    use: Callable[[int], None],
    set_device: Callable[[int], None],
) -> dict[str, Any]:
    """The names that `torch._C` has for them.

    Args:
        c: `torch._C`.
        simulation: The GPUs.
        use: Makes a device's context, if it has none.
        set_device: Makes a device the thread's current one.
    """
    lib = simulation.library.lib
    allocators = simulation.allocators
    functions: dict[str, Any] = {}

    class CudaStreamBase(c.Stream):  # type: ignore[misc, name-defined]
        def __new__(
            cls,
            priority: int = 0,
            stream_id: int = 0,
            device_index: int = 0,
            device_type: int = 0,
            stream_ptr: int = 0,
        ) -> Any:
            if stream_ptr:
                stream_id = stream_ptr
            if stream_id or device_index or device_type:
                return super().__new__(
                    cls, stream_id=stream_id, device_index=device_index, device_type=1
                )
            device = int(lib.plimsoll_current_device())
            return super().__new__(cls, device=f"cuda:{device}", priority=priority)

        @property
        def cuda_stream(self) -> int:
            return int(self.stream_id)

        @property
        def priority(self) -> int:
            return -1 if self.stream_id & 2 else 0

        @staticmethod
        def priority_range() -> tuple[int, int]:
            return (0, -5)

    class CudaEventBase(c.Event):  # type: ignore[misc, name-defined]
        def __new__(
            cls,
            enable_timing: bool = False,
            blocking: bool = False,
            interprocess: bool = False,
            external: bool = False,
        ) -> Any:
            event = super().__new__(
                cls,
                "cuda",
                enable_timing=enable_timing,
                blocking=blocking,
                interprocess=interprocess,
            )
            event._timer = c.Event("cuda", enable_timing=True) if enable_timing else None
            return event

        # torch.Event measures up to an event of its own class only.
        def record(self, stream: Any = None) -> None:
            super().record(stream)
            if self._timer is not None:
                self._timer.record(stream)

        def elapsed_time(self, end_event: Any) -> float:
            if self._timer is None or end_event._timer is None:
                raise ValueError("Both events must be created with argument 'enable_timing=True'.")
            return float(self._timer.elapsed_time(end_event._timer))

        @property
        def cuda_event(self) -> int:
            return int(self.event_id)

    functions["_CudaStreamBase"] = CudaStreamBase
    functions["_CudaEventBase"] = CudaEventBase

    def stream_data(index: int, stream: int) -> tuple[int, int, int]:
        return stream, index, _CUDA

    has_streams = False

    def current(index: int) -> int:
        nonlocal has_streams
        if not has_streams:  # PyTorch asks the current device for the priorities of its streams
            has_streams = True
            use(int(lib.plimsoll_current_device()))
        return int(lib.plimsoll_current_stream(index))

    def set_stream(stream_id: int, device_index: int, device_type: int) -> None:
        if int(lib.plimsoll_current_device()) != device_index:
            set_device(device_index)
        lib.plimsoll_set_stream(device_index, stream_id)

    functions["_cuda_getCurrentStream"] = lambda index: stream_data(index, current(index))
    functions["_cuda_getCurrentRawStream"] = current
    functions["_cuda_getDefaultStream"] = lambda index: stream_data(index, 0)
    functions["_cuda_getStreamFromExternal"] = lambda pointer, index: stream_data(index, pointer)
    functions["_cuda_setStream"] = set_stream

    def synchronize() -> None:
        device = int(lib.plimsoll_current_device())
        if device in simulation.capturing:
            raise c.AcceleratorError("CUDA error: operation not permitted when stream is capturing")
        simulation.refuse_after_failure()
        use(device)
        allocators[device].gpu.synchronize()

    functions["_cuda_synchronize"] = synchronize
    functions["_cuda_ipc_collect"] = lambda: None
    functions["_cuda_sleep"] = lambda cycles: allocators[
        int(lib.plimsoll_current_device())
    ].gpu.launch(current(int(lib.plimsoll_current_device())), cycles * 1e-9)

    functions["_CUDAGreenContext"] = _GreenContext
    return functions


class _GreenContext:
    """A part of a GPU's multiprocessors; memory is that of the whole."""

    def __init__(self, num_sms: int | None, device: int) -> None:
        self.num_sms = num_sms
        self.device = device

    @staticmethod
    def create(num_sms: int | None = None, device_id: int | None = None, **_: Any) -> _GreenContext:
        import torch

        return _GreenContext(
            num_sms, torch.cuda.current_device() if device_id is None else device_id
        )

    def set_context(self) -> None:
        pass

    def pop_context(self) -> None:
        pass

    def Stream(self) -> Any:  # noqa: N802
        import torch

        return torch.cuda.Stream(self.device)
