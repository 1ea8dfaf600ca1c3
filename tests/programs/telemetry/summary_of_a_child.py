"""Starts a multiprocessing child that reports an exit summary when it ends."""

import multiprocessing

from plimsoll.base.telemetry.exit_summaries import ExitSummary, report_at_exit


def work(rank: int) -> None:
    """Ends with a summary."""
    report_at_exit(lambda: [ExitSummary("torch", rank, 7, 0, 1, 2)], "1")


if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=work, args=(3,))
    process.start()
    process.join()
