"""Reports the memory account of a multiprocessing child at its end."""

import multiprocessing

from plimsoll.base.telemetry.accounts import Account, report_at_exit


def work(rank: int) -> None:
    """Registers an account that the process reports at its end."""
    report_at_exit(lambda: [Account("torch", rank, 7, 0, 1, 2)], "1")


if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=work, args=(3,))
    process.start()
    process.join()
