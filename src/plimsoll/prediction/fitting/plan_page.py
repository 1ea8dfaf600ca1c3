"""Makes the page of a plan: the unchanged script and the plan, side by side on one scale."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.prediction.child_process import started
from plimsoll.prediction.predicted_page import recorded, write_page

if TYPE_CHECKING:
    from os import PathLike

    from plimsoll.page.page_file import ViewResult
    from plimsoll.prediction.fitting.attempts import Attempt, Attempts
    from plimsoll.prediction.survey import AllocatorUse


def write_plan_page(
    attempts: Attempts,
    base: Attempt,
    chosen: Attempt,
    use: AllocatorUse,
    output: str | PathLike[str],
    *,
    fits: bool,
    force: bool,
) -> ViewResult:
    """Runs the script again, without and with the plan, and writes the page of both recordings.

    If the plan has no changes, it runs the script only once.

    Args:
        attempts: Makes the requests that run the script, unchanged and with the plan.
        base: The unchanged script. The page shows its run with unlimited memory.
        chosen: The script with the plan.
        use: The plan's allocator.
        output: The file of the page.
        fits: Whether the plan fits. If so, the page shows its run under the limit.
        force: Whether to replace an existing file.

    Raises:
        InputError: If the page cannot be written.
    """
    as_it_is = base.allocators()[0]
    requests = [attempts.request(base.changes, as_it_is, unlimited=True)]
    names = ["unchanged"]
    if chosen.changes or use != as_it_is:
        requests.append(attempts.request(chosen.changes, use, unlimited=not fits))
        names.append("with the plan")
    names = [f"{Path(requests[0].script).name} {name}" for name in names]
    with recorded(requests) as asked, ExitStack() as stack:
        answers = [
            stack.enter_context(started(request, shows_output=False, is_aside=True))
            for request in asked
        ]
        found = [answer() for answer in answers]
        return write_page(asked, found, Path(output), force=force, names=names)
