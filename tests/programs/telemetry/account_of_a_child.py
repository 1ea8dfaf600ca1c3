"""Reports the memory account of a multiprocessing child at its end."""

import multiprocessing

from plimsoll.base.telemetry.accounts import Account, report_at_exit


def work(rank: int) -> None:
    """Uses memory, then ends with an account."""
    report_at_exit(lambda: [Account("torch", rank, 7, 0, 1, 2)], "1")


if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=work, args=(3,))
    process.start()
    process.join()
