"""The streams and events of torch.cuda, built on torch.Stream and torch.Event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import ctypes
    from types import ModuleType

    from plimsoll.torch.simulated.cuda_devices import CudaDevices

_CUDA = 1  # PyTorch's number for the CUDA device type


def stream_functions(c: ModuleType, devices: CudaDevices) -> dict[str, Any]:
    """Returns the members of `torch._C` for streams and events, by name.

    Args:
        c: `torch._C`.
        devices: Knows the current device, and creates CUDA contexts.
    """
    streams = _Streams(devices)
    return {
        "_CudaStreamBase": type("CudaStreamBase", (_CudaStream, c.Stream), {"_lib": devices.lib}),
        "_CudaEventBase": type("CudaEventBase", (_CudaEvent, c.Event), {"_timer_type": c.Event}),
        "_CUDAGreenContext": _GreenContext,
        "_cuda_getCurrentStream": lambda index: (streams.current(index), index, _CUDA),
        "_cuda_getCurrentRawStream": streams.current,
        "_cuda_getDefaultStream": lambda index: (0, index, _CUDA),
        "_cuda_getStreamFromExternal": lambda pointer, index: (pointer, index, _CUDA),
        "_cuda_setStream": streams.set_current,
        "_cuda_synchronize": streams.synchronize,
        "_cuda_ipc_collect": lambda: None,
        "_cuda_sleep": streams.sleep,
    }


class _Streams:
    """The current streams of the devices."""

    def __init__(self, devices: CudaDevices) -> None:
        self._devices, self._lib = devices, devices.lib
        self._has_streams = False

    def current(self, index: int) -> int:
        # When PyTorch looks up a current stream for the first time, it creates the CUDA context of
        # the current device.
        if not self._has_streams:
            self._has_streams = True
            self._devices.use(self._devices.current())
        return int(self._lib.plimsoll_current_stream(index))

    def set_current(self, stream_id: int, device_index: int, device_type: int) -> None:
        if self._devices.current() != device_index:
            self._devices.set_current(device_index)
        self._lib.plimsoll_set_stream(device_index, stream_id)

    def synchronize(self) -> None:
        device, simulation = self._devices.current(), self._devices.simulation
        if device in simulation.capturing:
            raise self._devices.error(
                "CUDA error: operation not permitted when stream is capturing"
            )
        simulation.refuse_after_failure()
        self._devices.use(device)
        simulation.allocators[device].gpu.synchronize()

    def sleep(self, cycles: int) -> None:
        device = self._devices.current()
        gpu = self._devices.simulation.allocators[device].gpu
        gpu.launch(self.current(device), cycles * 1e-9)


class _CudaStream:
    """The CUDA part of torch.cuda.Stream, which also derives from torch.Stream."""

    _lib: ClassVar[ctypes.CDLL]
    stream_id: int

    def __new__(
        cls,
        priority: int = 0,
        stream_id: int = 0,
        device_index: int = 0,
        device_type: int = 0,
        stream_ptr: int = 0,
    ) -> Any:
        make: Any = super().__new__
        if stream_ptr:  # torch.cuda.ExternalStream: on the current device
            stream_id, device_index = stream_ptr, int(cls._lib.plimsoll_current_device())
        if stream_id or device_index or device_type:
            return make(cls, stream_id=stream_id, device_index=device_index, device_type=_CUDA)
        device = int(cls._lib.plimsoll_current_device())
        return make(cls, device=f"cuda:{device}", priority=priority)

    @property
    def cuda_stream(self) -> int:
        return int(self.stream_id)

    @property
    def priority(self) -> int:
        return -1 if self.stream_id & 2 else 0

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return (0, -5)


class _CudaEvent:
    """The CUDA part of torch.cuda.Event, which also derives from torch.Event.

    torch.Event measures the time only between events of exactly that class, not of subclasses. So
    each event has a second event, of class torch.Event, as its timer.
    """

    _timer_type: ClassVar[Any]
    _timer: Any
    event_id: int

    def __new__(
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> Any:
        make: Any = super().__new__
        event = make(
            cls, "cuda", enable_timing=enable_timing, blocking=blocking, interprocess=interprocess
        )
        event._timer = cls._timer_type("cuda", enable_timing=True) if enable_timing else None
        return event

    def record(self, stream: Any = None) -> None:
        super().record(stream)  # type: ignore[misc]
        if self._timer is not None:
            self._timer.record(stream)

    def elapsed_time(self, end_event: Any) -> float:
        if self._timer is None or end_event._timer is None:
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        return float(self._timer.elapsed_time(end_event._timer))

    @property
    def cuda_event(self) -> int:
        return int(self.event_id)


class _GreenContext:
    """A part of a GPU's multiprocessors. It uses the memory of the whole GPU."""

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
