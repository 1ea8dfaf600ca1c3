"""The exceptions that plimsoll raises on purpose."""

from __future__ import annotations

import re
import signal

from plimsoll import _core
from plimsoll.base.printable import printable


class InputError(ValueError):
    """Input that plimsoll cannot use; the message is one line on what is wrong and why.

    The command line prints the message and ends with exit status 2.

    >>> import plimsoll
    >>> try:
    ...     plimsoll.SimulatedGpu("24")
    ... except plimsoll.InputError as error:
    ...     print(error)
    '24' has no unit, so it is bytes; did you mean 24GiB?
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(" ".join(message.splitlines())))


_LACKS_RANK = re.compile(
    r"KeyError: '(LOCAL_RANK|RANK|WORLD_SIZE|LOCAL_WORLD_SIZE)'"
    r"|environment variable (RANK|WORLD_SIZE|MASTER_ADDR) expected"
)
"""Matches the error of a script that needs torchrun's environment variables but lacks them."""


class ScriptError(RuntimeError):
    """A script that plimsoll ran failed; the script has printed its error itself.

    >>> import plimsoll
    >>> try:
    ...     plimsoll.predict("train.py")
    ... except plimsoll.ScriptError as error:
    ...     print(error.status)  # doctest: +SKIP

    Attributes:
        status: The script's exit status; -n if signal n killed it.
        unknown_read: The line at which the script first read a value that the simulation had not
            computed. This read may be the cause of the failure. None if there was no such read.
        missed_network: Whether the script failed because plimsoll runs it without a network.
        refused: The first change of a real file that plimsoll refused, as the program and the
            file; None if plimsoll refused no change.
        reason: The type of the script's error, the first line of its message, and the line that
            raised it; None if the script reported none.
        device_failure: The check that failed inside a simulated kernel, with the line that called
            the kernel. On a GPU the script would have failed in this kernel. None if all checks
            passed.
        until_then: The memory that the script took before it failed, in words; None if it had used
            no GPU, or if the amount is unknown.
    """

    def __init__(
        self,
        script: str,
        status: int,
        unknown_read: str | None = None,
        *,
        missed_network: bool = False,
        refused: str | None = None,
        reason: str | None = None,
        device_failure: str | None = None,
        until_then: str | None = None,
    ) -> None:
        killed = status < 0 and -status in set(signal.Signals)
        end = (
            f"was killed by {signal.Signals(-status).name}"
            if killed
            else f"ended with status {status}"
        )
        if device_failure is not None:
            end = f"fails on a GPU at {device_failure}; a GPU calls this a device-side assert"
            reason = None
        elif missed_network:
            end = (
                "failed because plimsoll runs scripts offline: download what the script loads "
                f"beforehand, or let it reach other machines with --network; the script {end}"
            )
        if reason is not None:
            end = f"{end}: {reason}"
            if _LACKS_RANK.search(reason):
                end += (
                    "; it seems to be a rank of a job: predict and fit start its ranks with "
                    "--nproc-per-node N (sweep takes scripts of one process)"
                )
        if unknown_read is not None and device_failure is None and not missed_network:
            end += (
                "; a possible cause is that the script read values that plimsoll did not compute "
                f"({unknown_read})"
            )
        if until_then is not None and device_failure is None:
            end += f"; until then {until_then}"
        if refused is not None:
            end += (
                f"; plimsoll did not let {refused}, because it cannot discard that change here; "
                "--keep-writes allows it"
            )
        super().__init__(printable(f"{script} {end}"))
        self.device_failure = device_failure
        self.until_then = until_then
        self.reason = reason
        self.refused = refused
        self.status = status
        self.unknown_read = unknown_read
        self.missed_network = missed_network


DriverError = _core.DriverError
DriverError.__doc__ = """A driver call failed that the allocator needs; the message names the call.

The simulated driver does so only when `SimulatedGpu.fail` asks for it, or when a request is beyond
its address space; see docs/engine.md.
"""


class OutOfMemoryError(RuntimeError):
    """A request failed: the device has too little memory, or a limit forbids more.

    The message is the one that PyTorch would give.

    >>> import plimsoll
    >>> allocator = plimsoll.Allocator(plimsoll.SimulatedGpu("1GiB"))
    >>> try:
    ...     allocator.malloc("2GiB")
    ... except plimsoll.OutOfMemoryError as error:
    ...     print(error.requested_bytes)
    2147483648

    Attributes:
        requested_bytes: Bytes that the request asked for.
        free_bytes: Bytes that were free on the device.
        total_bytes: The device's memory.
        limit_bytes: The most that may be reserved; None for no limit.
        allocated_bytes: Bytes in live blocks.
        reserved_bytes: Bytes reserved from the driver.
    """

    def __init__(
        self,
        message: str,
        *,
        requested_bytes: int,
        free_bytes: int,
        total_bytes: int,
        limit_bytes: int | None,
        allocated_bytes: int,
        reserved_bytes: int,
    ) -> None:
        super().__init__(message)
        self.requested_bytes = requested_bytes
        self.free_bytes = free_bytes
        self.total_bytes = total_bytes
        self.limit_bytes = limit_bytes
        self.allocated_bytes = allocated_bytes
        self.reserved_bytes = reserved_bytes
