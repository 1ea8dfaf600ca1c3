"""Tests searches over a serving engine's options, on a tiny model of an engine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given as examples
from hypothesis.strategies import booleans, integers, sampled_from

from plimsoll import InputError
from plimsoll.base.units import GiB
from plimsoll.prediction.parts import INTERRUPTED
from plimsoll.prediction.recipes.served import VLLM, engine_cards, given, without
from plimsoll.prediction.serving.bisection import MOST_RUNS, Bisection
from plimsoll.prediction.serving.engine_fit import _require_a_start
from plimsoll.prediction.serving.engine_fit_text import (
    answer_text,
    command_of,
    engine_fit_text,
    is_unknown,
)
from plimsoll.prediction.serving.engine_search import Bounds, EngineSearch
from plimsoll.prediction.serving.engine_trials import with_settings
from plimsoll.prediction.serving.parts import CARD, EngineBorder, EngineFitParts, EngineTrial
from plimsoll.prediction.serving.varied_options import (
    LENGTH,
    PARALLEL,
    SEQUENCES,
    SHARE,
    Varied,
)
from plimsoll.torch.simulated.serving_use import ServingUse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Engine = Callable[[str, dict[str, str]], EngineTrial]

OWN_LENGTH = 131_072


def serves(gpu: str, settings: Mapping[str, str], **facts: Any) -> EngineTrial:
    use = ServingUse("vLLM 1.0", stage="load", weights_bytes=GiB, **facts)
    return EngineTrial(gpu, 1, {**settings}, True, "serves", use, 2 * GiB, 24 * GiB)


def fails(gpu: str, settings: Mapping[str, str], ends: str = "fails", **facts: Any) -> EngineTrial:
    use = ServingUse("vLLM 1.0", **{"weights_bytes": GiB, **facts})
    return EngineTrial(gpu, 1, {**settings}, False, ends, use, None, 24 * GiB)


def errs(gpu: str, settings: Mapping[str, str], error: str) -> EngineTrial:
    return EngineTrial(gpu, 1, {**settings}, False, "fails", error=error)


class Trials:
    """Calls a function in place of an engine, and counts the calls."""

    def __init__(self, engine: Engine, arguments: list[str]) -> None:
        self.arguments = arguments
        self.runs: list[tuple[str, dict[str, str]]] = []
        self._engine = engine

    def run(self, gpu: str, settings: Mapping[str, str]) -> EngineTrial:
        self.runs.append((gpu, {**settings}))
        return self._engine(gpu, {**settings})


def search(engine: Engine, *arguments: str, **bounds: Any) -> tuple[EngineSearch, Trials]:
    trials = Trials(engine, ["org/m", *arguments])
    return EngineSearch(trials, Bounds(**bounds)), trials  # type: ignore[arg-type]


@examples(integers(1, 1 << 20), integers(1, 1 << 17), booleans())
def test_a_bisection_encloses_the_largest_number_that_works(
    limit: int, start: int, exact: bool
) -> None:
    numbers = Bisection(start, is_exact=exact)
    tried: list[int] = []
    while (number := numbers.next()) is not None:
        assert number not in tried
        tried.append(number)
        numbers.learn(number, is_too_much=number > limit)
    assert numbers.low <= limit
    assert numbers.high is None or numbers.high > limit
    if exact:
        assert (numbers.low, numbers.high) == (limit, limit + 1)
    else:
        assert len(tried) <= MOST_RUNS
        assert numbers.is_spent or (numbers.high or 0) - numbers.low <= max(1, limit // 100)


@examples(integers(1, 100), integers(1, 100))
def test_a_share_is_found_to_the_hundredth_and_never_above_the_card(limit: int, start: int) -> None:
    numbers = Bisection(start, at_most=100, is_exact=True, is_near=True)
    while (number := numbers.next()) is not None:
        assert 1 <= number <= 100
        numbers.learn(number, is_too_much=number > limit)
    assert numbers.low == limit


@examples(integers(16, OWN_LENGTH - 1))
def test_the_engines_own_estimate_is_tried_and_then_what_is_above_it(longest: int) -> None:
    def engine(gpu: str, settings: dict[str, str]) -> EngineTrial:
        length = int(settings.get(LENGTH, OWN_LENGTH))
        if length > longest:
            facts = {"refusal": "too long", "fitting_len": longest, "max_model_len": length}
            return fails(gpu, settings, "refuses to start", **facts)
        return serves(gpu, settings, max_model_len=length)

    find, trials = search(engine)
    border = find.largest("L4", LENGTH, {})
    assert isinstance(border.value, int)
    assert border.value <= longest
    assert longest - border.value <= max(1, longest // 100)
    assert border.stopped is None
    if longest < OWN_LENGTH * 0.98:
        assert border.value == longest
        assert len(trials.runs) == 3


def test_a_models_own_length_is_not_searched_beyond() -> None:
    find, trials = search(lambda gpu, settings: serves(gpu, settings, max_model_len=OWN_LENGTH))
    border = find.largest("L4", LENGTH, {})
    assert (border.value, border.stopped) == (OWN_LENGTH, "the model allows no more")
    assert len(trials.runs) == 1


def test_the_limit_that_an_error_names_ends_a_search() -> None:
    def engine(gpu: str, settings: dict[str, str]) -> EngineTrial:
        count = int(settings[SEQUENCES])
        if count > 2048:
            return errs(gpu, settings, f"{count} is above max_num_batched_tokens (2048) (a.py:600)")
        return serves(gpu, settings)

    find, trials = search(engine, SEQUENCES, "600")
    border = find.largest("L4", SEQUENCES, {})
    assert border.value == 2048
    assert border.stopped is not None
    assert "the engine fails: " in border.stopped
    assert len(trials.runs) == 5  # with 600, 1200, 2400, 2048, and a last value above 2048


@examples(integers(2, 99), integers(1, 99), sampled_from(["0.3", "0.5", "0.9", "0.99"]))
def test_a_share_may_be_too_little_and_too_much(least: int, width: int, start: str) -> None:
    """Searches over `--gpu-memory-utilization`, the share of the card that the engine may use.

    Too small a share leaves no room for the KV cache. With too large a share the engine runs out of
    memory under load.
    """
    most = min(least + width, 99)

    def engine(gpu: str, settings: dict[str, str]) -> EngineTrial:
        share = round(100 * float(settings[SHARE]))
        if share < least:
            return fails(gpu, settings, "refuses to start", refusal="no room")
        if share > most:
            return fails(gpu, settings, "runs out of memory under load", failed_in="load")
        return serves(gpu, settings)

    find, _ = search(engine, SHARE, start)
    border = find.largest("L4", SHARE, {})
    assert border.value == pytest.approx(most / 100)
    assert border.stopped is None


def test_no_value_is_searched_where_the_weights_do_not_fit() -> None:
    find, trials = search(
        lambda gpu, settings: fails(
            gpu,
            settings,
            "runs out of memory while it loads the weights",
            weights_bytes=None,
            failed_in="weights",
        )
    )
    for vary in (LENGTH, SEQUENCES, SHARE):
        border = find.largest("T4", vary, {})
        assert border.value is None
        assert border.stopped is not None
        assert "whatever" in border.stopped
    assert len(trials.runs) == 3


def test_an_engine_that_fails_otherwise_in_every_search_is_bad_input() -> None:
    find, _ = search(lambda gpu, settings: errs(gpu, settings, "no such model"))
    found = [find.largest("L4", LENGTH, {}), find.least("L4", {}, [1, 2]), find.alone("L4", {})]
    for border in found:
        assert border.trial is None
        with pytest.raises(InputError, match="no such model"):
            _require_a_start([border])


def test_a_choice_with_which_the_engine_fails_leaves_the_others() -> None:
    def engine(gpu: str, settings: dict[str, str]) -> EngineTrial:
        if settings.get("--quantization") == "fp8":
            return errs(gpu, settings, "fp8 needs a newer card")
        return serves(gpu, settings, max_model_len=OWN_LENGTH)

    find, _ = search(engine)
    choices = [{"--quantization": each} for each in ("fp8", "none")]
    found = [find.largest("T4", LENGTH, each) for each in choices]
    _require_a_start(found)
    assert [each.value for each in found] == [None, OWN_LENGTH]
    assert found[0].stopped == "the engine fails: fp8 needs a newer card"


def test_a_larger_value_that_fails_early_does_not_lose_the_answer() -> None:
    def engine(gpu: str, settings: dict[str, str]) -> EngineTrial:
        if int(settings["--max-loras"]) > 8:
            return fails(gpu, settings, "runs out of memory", weights_bytes=None)
        return serves(gpu, settings)

    find, _ = search(engine, start=4)
    border = find.largest("L4", "--max-loras", {})
    assert (border.value, border.next_value) == (8, 9)


def test_what_is_not_known_is_no_answer() -> None:
    def unknown(gpu: str, settings: dict[str, str]) -> EngineTrial:
        return replace(serves(gpu, settings, max_model_len=OWN_LENGTH), fits=None)

    find, trials = search(unknown)
    found = [find.largest("L4", LENGTH, {}), find.smallest_card(["L4", "A10"], {})]
    assert [each.trial for each in found] == [None, None]
    fit = EngineFitParts(["vllm", "serve", "org/m"], "L4", LENGTH, found, [unknown("L4", {})])
    assert is_unknown(fit)
    assert "it is not known whether it serves on L4" in answer_text(fit)
    assert len(trials.runs) == 3


@pytest.mark.parametrize(
    ("words", "name", "left"),
    [
        ("--enforce-eager org/m", "--enforce-eager", "org/m"),
        ("org/m --no-enable-prefix-caching", "--enable-prefix-caching", "org/m"),
        ("--cudagraph-capture-sizes 1 2 4 --seed 3", "--cudagraph-capture-sizes", "--seed 3"),
        ("org/m -q awq", "--quantization", "org/m"),
        ("org/m --max_model_len=8 --seed 1", "--max-model-len", "org/m --seed 1"),
    ],
)
def test_an_option_is_taken_out_and_nothing_else(words: str, name: str, left: str) -> None:
    assert without(words.split(), name) == left.split()


def test_an_unknown_option_needs_a_first_value() -> None:
    find, _ = search(lambda gpu, settings: serves(gpu, settings))
    with pytest.raises(InputError, match="--start N"):
        find.largest("L4", "--block-size", {})
    find, _ = search(lambda gpu, settings: serves(gpu, settings), start=8, at_most=40)
    border = find.largest("L4", "--block-size", {})
    assert (border.value, border.stopped) == (40, "--at-most 40 ends the search")


@examples(integers(0, 20), integers(0, 19))
def test_the_smallest_card_is_found_beside_cards_on_which_the_engine_fails(
    least: int, broken: int
) -> None:
    cards = [f"card {number}" for number in range(20)]

    def engine(gpu: str, settings: dict[str, str]) -> EngineTrial:
        number = cards.index(gpu)
        if number == broken:
            return errs(gpu, settings, "no bfloat16")
        return (serves if number >= least else fails)(gpu, settings)

    find, trials = search(engine)
    border = find.smallest_card(cards, {})
    working = [number for number in range(least, 20) if number != broken]
    assert border.value == (cards[working[0]] if working else None)
    failing = [number for number in range(least) if number != broken]
    assert border.next_value == (cards[failing[-1]] if failing else None)
    assert len(trials.runs) <= 7


def test_the_least_parallelism_is_tried_from_below() -> None:
    def engine(gpu: str, settings: dict[str, str]) -> EngineTrial:
        return (serves if int(settings[PARALLEL]) >= 4 else fails)(gpu, settings)

    find, trials = search(engine)
    border = find.least("L4", {}, (1, 2, 4, 8))
    assert (border.value, border.next_value) == (4, 2)
    assert len(trials.runs) == 3
    assert find.least("L4", {}, (1, 2)).value is None


def test_an_interrupt_ends_with_what_is_known() -> None:
    def engine(gpu: str, settings: dict[str, str]) -> EngineTrial:
        if int(settings[SEQUENCES]) > 1000:
            raise KeyboardInterrupt
        return serves(gpu, settings)

    find, _ = search(engine, f"{SEQUENCES}=512")
    border = find.largest("L4", SEQUENCES, {})
    assert (border.value, border.stopped) == (512, INTERRUPTED)
    assert find.is_interrupted


def test_options_of_the_command_are_read_and_replaced() -> None:
    words = ["org/m", "--max_model_len", "8192", "--max-num-seqs=64", "-tp", "2", "-pp=4"]
    assert given(words, LENGTH) == "8192"
    assert given(words, SEQUENCES) == "64"
    assert given(words, SHARE) is None
    assert engine_cards(VLLM, words) == 8
    assert engine_cards(VLLM, ["org/m", "--tensor-parallel-size", "many"]) == 1
    assert without(words, LENGTH) == ["org/m", "--max-num-seqs=64", "-tp", "2", "-pp=4"]
    assert without(["m", "--enforce-eager", "--port", "1"], "--enforce-eager") == [
        "m", "--port", "1"
    ]  # fmt: skip
    changed = with_settings(words[:4], {LENGTH: "16", SEQUENCES: "none", "--enforce-eager": "on"})
    assert changed == ["org/m", LENGTH, "16", "--enforce-eager"]


def test_choices_make_a_search_each() -> None:
    varied = Varied.parse(["--max_model_len", "--quantization=none,fp8", "--block-size=16,32"])
    assert varied.searched == LENGTH
    assert len(varied.choices) == 4
    assert varied.choices[1] == {"--quantization": "none", "--block-size": "32"}
    assert Varied.parse([]) == Varied(None, ({},))


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["max-model-len"], "not 'max-model-len'"),
        (["--quantization=fp8,"], "--vary is an option of vllm serve"),
        ([LENGTH, SEQUENCES], "one option is searched at a time"),
        ([LENGTH, f"{LENGTH}=8,16"], "not both"),
    ],
)
def test_a_wrong_vary_is_one_line(texts: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Varied.parse(texts)


def found(*borders: EngineBorder, gpu: str | None = "L4", vary: str | None = None) -> Any:
    tried = [trial for each in borders for trial in (each.trial, each.beyond) if trial is not None]
    return EngineFitParts(["vllm", "serve", "org/m", "--port", "1"], gpu, vary, [*borders], tried)


def test_the_first_line_is_the_answer_and_the_command_follows() -> None:
    best = serves("L4", {LENGTH: "4096"}, kv_tokens=8192, kv_cache_bytes=GiB, max_model_len=4096)
    beyond = fails("L4", {LENGTH: "4136"}, "refuses to start, 1 byte too little")
    fit = found(EngineBorder(LENGTH, {}, best, beyond), vary=LENGTH)
    lines = engine_fit_text(fit).splitlines()
    assert lines[0] == f"L4: {LENGTH} 4096; 4136 refuses to start, 1 byte too little"
    assert lines[1].startswith("  8,192 tokens of KV cache, 2.0 requests of 4,096; 2.00 GiB of")
    assert lines[2] == f"Run: vllm serve org/m --port 1 {LENGTH} 4096"
    assert any(line.split()[:2] == ["4096", "serves"] for line in lines)


def test_answers_of_every_kind_name_the_border() -> None:
    good, bad = serves("L4", {}), fails("T4", {}, "runs out of memory under load")
    card = found(EngineBorder(CARD, {}, good, bad), gpu=None, vary=CARD)
    assert answer_text(card) == (
        "vllm serve org/m: the smallest card that serves is L4 (24.00 GiB); "
        "T4 runs out of memory under load"
    )
    assert answer_text(found(EngineBorder(None, {}, good))).endswith("serves on L4 as it is")
    none = found(EngineBorder(None, {}, None, bad))
    assert "does not serve on L4, nor with what was tried: it runs out" in answer_text(none)
    assert command_of(none) == []
    settings = {"--quantization": "fp8"}
    chosen = serves("L4", settings)
    changed = found(EngineBorder(None, {}, None, bad), EngineBorder(None, settings, chosen))
    assert answer_text(changed) == "vllm serve org/m serves on L4 with --quantization fp8"
    assert command_of(changed)[-2:] == ["--quantization", "fp8"]
