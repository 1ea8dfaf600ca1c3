"""Fills a simulated T4, and explains the error.

    python fills_the_card.py HOW

HOW names the function to run, such as `caught`. Each function handles the error differently.
"""

import sys
import threading

from plimsoll.torch.simulated.setup import Setup
from plimsoll.torch.simulated.simulation import Simulation
from plimsoll.torch.simulated.start import start

simulation = Simulation(Setup(("T4",)))
start(simulation)

import torch  # noqa: E402

from plimsoll.explanation.oom_hook import explain_oom  # noqa: E402

kept: list[torch.Tensor] = []


def fill() -> None:
    """Allocates until memory runs out."""
    while True:
        kept.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))


def uncaught() -> None:
    """Lets the error end the program."""
    explain_oom()
    fill()


def in_a_thread() -> None:
    """Lets the error end a thread."""
    explain_oom()
    thread = threading.Thread(target=fill)
    thread.start()
    thread.join()


def caught() -> None:
    """Catches the error and explains it twice."""
    hook = explain_oom()
    try:
        fill()
    except torch.OutOfMemoryError as error:
        first, again = hook.explain(error), hook.explain(error)
    print(first is not None, again)


def cause_of_another() -> None:
    """Ends the program with another error, whose cause is the out-of-memory error."""
    explain_oom()
    try:
        fill()
    except RuntimeError as error:
        raise SystemError("gave up") from error


def in_a_block() -> None:
    """Leaves an `explain_oom` block with the error, and catches it outside."""
    try:
        with explain_oom("notes"):
            fill()
    except torch.OutOfMemoryError:
        print("caught")


def nowhere_to_write() -> None:
    """Directs the explanation to a missing folder."""
    explain_oom("no/such/folder")
    fill()


def beside_a_library() -> None:
    """Fills a card after a library took 8 GiB of it without PyTorch."""
    explain_oom()
    torch.zeros(1, device="cuda")
    simulation.machine.gpus[0].take("8GiB")
    fill()


def other() -> None:
    """Ends the program with an error unrelated to memory."""
    explain_oom()
    raise ValueError("something else")


ways = (
    *(uncaught, in_a_thread, caught, cause_of_another, in_a_block),
    *(nowhere_to_write, beside_a_library, other),
)
{way.__name__: way for way in ways}[sys.argv[1]]()
