"""Runs a serving engine with the options that a search sets; runs each command only once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plimsoll.prediction.not_kept import NotKept, each_once
from plimsoll.prediction.recipes.served import VLLM, without
from plimsoll.prediction.serving.parts import EngineTrial
from plimsoll.prediction.sweeps.case_runs import prepared, row_of
from plimsoll.prediction.sweeps.parts import Case
from plimsoll.prediction.sweeps.program_digest import ProgramDigests
from plimsoll.prediction.sweeps.served_rows import SERVES, ends_of, serving_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from plimsoll.prediction.fitting.headroom import Headroom
    from plimsoll.prediction.options import Options
    from plimsoll.prediction.sweeps.parts import Row
    from plimsoll.prediction.sweeps.results_file import ResultsFile

    Progress = Callable[[str, Mapping[str, str], EngineTrial | None], None]

LEFT_OUT, WITHOUT_VALUE = "none", "on"
"""Values in settings: the first leaves an option out, the second gives it without a value."""


def with_settings(arguments: Sequence[str], settings: Mapping[str, str]) -> list[str]:
    """Returns a copy of `arguments` in which each option in `settings` has its new value.

    Args:
        arguments: The arguments of `vllm serve`.
        settings: The new value of each option, by the option's name; see `EngineTrial.settings`.
    """
    found = list(arguments)
    for name, value in settings.items():
        found = without(found, name)
        if value != LEFT_OUT:
            found += [name] if value == WITHOUT_VALUE else [name, value]
    return found


class EngineTrials:
    """Runs an engine's trials one after the other, each command only once.

    Args:
        arguments: The arguments after `vllm serve`.
        options: The options of each prediction, except the card.
        headroom: The memory that must stay free under load.
        kept: The file that keeps the results of finished trials, so that a later search does not
            run them again; None to keep no results.
        progress: A function that gets the card, the settings, and a trial or None. It is called
            with None before the engine runs, and with the trial once the result is known.

    Attributes:
        tried: The trials, in order, each command once.
        not_kept: The guarantees, such as exact figures, that at least one trial could not give.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        options: Options,
        headroom: Headroom,
        kept: ResultsFile | None,
        progress: Progress,
    ) -> None:
        self.arguments = list(arguments)
        self.tried: list[EngineTrial] = []
        self.not_kept: list[NotKept] = []
        self._options = options
        self._headroom = headroom
        self._kept = kept
        self._progress = progress
        self._digests = ProgramDigests()
        self._known: dict[str, EngineTrial] = {}

    def run(self, gpu: str, settings: Mapping[str, str]) -> EngineTrial:
        """Runs the engine on a card with settings, or returns the earlier trial of this command.

        Raises:
            InputError: If the card or an option of the prediction cannot be used.
        """
        options = replace(self._options, gpu=gpu)
        arguments = tuple(with_settings(self.arguments, settings))
        case = Case("prediction", str(VLLM.script), arguments, gpu, options.conf, options.allocator)
        run = prepared(case, self._digests, options)
        assert run.request is not None
        known = self._known.get(run.key)
        if known is not None:  # other settings can give the same command
            return replace(known, settings={**settings})
        kept = None if self._kept is None else self._kept.done(run.key)
        if kept is None:
            self._progress(gpu, settings, None)
            row = row_of(run, is_aside=True)
            if self._kept is not None:
                self._kept.keep(row)
        else:
            row = kept
        trial = self._trial(row, len(run.request.setup.gpus), settings)
        trial = replace(trial, is_kept=kept is not None)
        self._known[run.key] = trial
        self.tried.append(trial)
        if row.result is not None:
            told = [NotKept(**each) for each in row.result["not_kept"]]
            self.not_kept = each_once([self.not_kept, told])
        self._progress(gpu, settings, trial)
        return trial

    def _trial(self, row: Row, gpus: int, settings: Mapping[str, str]) -> EngineTrial:
        gpu = row.case.gpu or ""
        found: dict[str, Any] = row.result
        ends, use = ends_of(row) or "", serving_of(row)
        if row.error is not None or use is None:
            return EngineTrial(gpu, gpus, {**settings}, False, ends, error=row.error or ends)
        serves = row.fits is True and ends == SERVES
        headroom = int(found["headroom_bytes"])
        needed = self._headroom.of(found["total_bytes"] + found["used_bytes"])
        is_enough = headroom >= needed
        return EngineTrial(
            gpu=gpu,
            gpus=gpus,
            settings={**settings},
            fits=None if row.fits is None else serves and is_enough,
            ends="serves, and leaves too little" if serves and not is_enough else ends,
            serving=use,
            headroom_bytes=headroom if serves else None,
            total_bytes=row.total_bytes,
            seconds=float(found["seconds"]),
        )
