"""Makes the JSON Schema of the output of `--json`, from the classes of the printed results.

Keys and types come from the classes, descriptions from their docstrings. After a change, run:

    python -m tests.output_schema
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import sys
import types
import typing
from pathlib import Path
from typing import Any

import plimsoll
from plimsoll.base.json_text import SCHEMA
from plimsoll.base.telemetry.exit_summaries import ExitSummary
from plimsoll.engine.gpus.profiles import GpuProfile
from plimsoll.engine.replays.parts import Difference, ReplayResult
from plimsoll.explanation.parts import ExplanationParts
from plimsoll.explanation.ranks.parts import RanksParts
from plimsoll.explanation.ranks.view_ranks import RanksViewResult
from plimsoll.integrations.diagnosis.results import Diagnosis
from plimsoll.page.page_file import ViewResult
from plimsoll.prediction.check_parts import CheckParts
from plimsoll.prediction.fitting.parts import FitParts
from plimsoll.prediction.fitting.plan_parts import PlanParts
from plimsoll.prediction.parts import PredictionParts
from plimsoll.prediction.serving.parts import EngineFitParts
from plimsoll.prediction.sweeps.parts import Case, Row, SweepParts

FILE = Path(plimsoll.__file__).with_name("output.schema.json")
_PLAIN = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
_ATTRIBUTE = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)


def _object(
    description: str, keys: dict[str, Any], optional: tuple[str, ...] = ()
) -> dict[str, Any]:
    required = [key for key in keys if key not in optional]
    return {
        "type": "object", "description": description, "required": required, "properties": keys,
    }  # fmt: skip


def _text(description: str, *kinds: str) -> dict[str, Any]:
    return {"type": list(kinds) if len(kinds) > 1 else kinds[0], "description": description}


def _list(description: str, name: str) -> dict[str, Any]:
    items = {"$ref": f"#/$defs/{name}"}
    return {"type": "array", "items": items, "description": description}


class Definitions:
    """Collects the schema's definitions (`$defs`), one for each dataclass.

    Attributes:
        made: The definitions so far, keyed by name.
    """

    def __init__(self) -> None:
        self.made: dict[str, dict[str, Any]] = {}
        self._classes: dict[str, type] = {}

    def of(self, kind: Any) -> dict[str, Any]:
        """Returns the schema of a type; a dataclass becomes a reference to a definition."""
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if kind in _PLAIN:
            return {"type": _PLAIN[kind]}
        if kind is Any or kind is object:
            return {}
        if dataclasses.is_dataclass(kind):
            return self._reference(typing.cast("type", kind))
        if origin is typing.Literal:
            return {"enum": list(arguments)}
        if origin in (types.UnionType, typing.Union):
            return self._union([self.of(each) for each in arguments])
        if isinstance(origin, type) and issubclass(origin, tuple) and arguments[-1:] != (...,):
            parts = [self.of(each) for each in arguments]
            size = len(parts)
            return {"type": "array", "prefixItems": parts, "minItems": size, "maxItems": size}
        if isinstance(origin, type) and issubclass(origin, (dict, typing.Mapping)):
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        if origin is not None:
            return {"type": "array", "items": self.of(arguments[0])}
        if isinstance(kind, type) and issubclass(kind, tuple):  # a NamedTuple
            hints = typing.get_type_hints(kind, localns=_names_for(kind))
            return self.of(tuple[tuple(hints.values())])  # type: ignore[misc]
        if isinstance(kind, type) and issubclass(kind, str):  # an enumeration
            return {"type": "string"}
        raise TypeError(f"there is no schema of {kind!r}")

    def keys(self, kind: type) -> dict[str, Any]:
        """Returns the properties of a dataclass, each described by its text in the docstring."""
        hints: dict[str, Any] = {}
        told: dict[str, str] = {}
        for base in reversed([each for each in kind.__mro__ if dataclasses.is_dataclass(each)]):
            hints |= {
                name: eval(text, _names_for(base)) if isinstance(text, str) else text
                for name, text in vars(base).get("__annotations__", {}).items()
            }
            text = inspect.cleandoc(base.__doc__ or "")
            attributes = text.partition("Attributes:\n")[2]
            told |= {name: " ".join(of.split()) for name, of in _ATTRIBUTE.findall(attributes)}
        return {
            field.name: {**self.of(hints[field.name]), **_described(told.get(field.name))}
            for field in dataclasses.fields(kind)
        }

    def _reference(self, kind: type) -> dict[str, Any]:
        name = kind.__name__
        if self._classes.setdefault(name, kind) is not kind:
            name = f"{kind.__module__.rpartition('.')[2].title().replace('_', '')}{name}"
            self._classes[name] = kind
        if name not in self.made:
            self.made[name] = {}  # a class may contain itself
            self.made[name] = _object(_first_sentence(kind), self.keys(kind))
        return {"$ref": f"#/$defs/{name}"}

    def _union(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        if all(list(part) == ["type"] for part in parts):
            return {"type": [part["type"] for part in parts]}
        return {"anyOf": parts}


def _described(text: str | None) -> dict[str, str]:
    return {} if text is None else {"description": text}


def _first_sentence(kind: type) -> str:
    return inspect.cleandoc(kind.__doc__ or "").partition("\n")[0]


def _names_for(kind: type) -> dict[str, Any]:
    """Returns the names in a class's module, including names imported under TYPE_CHECKING."""
    module = sys.modules[kind.__module__]
    names = dict(vars(module))
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            exec(compile(ast.Module(node.body, []), module.__name__, "exec"), names)
    return names


def make_schema() -> dict[str, Any]:
    """Returns the schema of every line that `--json` prints."""
    made = Definitions()
    lines = _lines(made)
    version = {"const": SCHEMA, "description": "Grows when a key goes or changes its meaning."}
    for line in lines.values():
        line["properties"] = {"schema": version, **line["properties"]}
        line["required"] = ["schema", *line["required"]]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A line that a command of plimsoll prints with --json",
        "description": "Keys that end in _bytes are bytes, those that end in _seconds seconds. A "
        "null is unknown, or absent. Keys may be added at any time.",
        "oneOf": [{"$ref": f"#/$defs/{name}"} for name in lines],
        "$defs": {**lines, **{name: made.made[name] for name in sorted(made.made)}},
    }  # fmt: skip


def _lines(made: Definitions) -> dict[str, dict[str, Any]]:
    """Returns the schema of each kind of line, such as a prediction, by name."""
    prediction = made.keys(PredictionParts)
    prediction["device_used_range_bytes"] = {
        **prediction["peak_reserved_range_bytes"],
        "description": "The bounds of device_used_bytes, or null where it is exact.",
    }
    prediction["samples_per_second"] = _text(
        "The samples of a second on all ranks together, if each rank has samples of its own; null "
        "if unknown.", "number", "null",
    )  # fmt: skip
    words = {
        "why": _text("One sentence: why the answer is what it is.", "string", "null"),
        "next": _text("What to do next: a command, a line of code or a sentence; null where a "
                      "script from a stream has no name.", "string", "null"),
    }  # fmt: skip
    caveats = {
        "type": "array",
        "items": {"type": "string"},
        "description": "What limits the answer, in sentences: steps that were left out, growing "
                       "memory, a stop. The list is empty if nothing does.",
    }  # fmt: skip
    doubtful = _text(
        "Whether it may not fit although `fits` is true: the CUDA context or the peak "
        "may be larger than estimated, by more than stays free.",
        "boolean",
    )
    serving = {**made.keys(EngineFitParts), **words}
    fit, plan = {**made.keys(FitParts), **words}, {**made.keys(PlanParts), **words}
    replay = made.keys(ReplayResult)
    event = _object("An event.", {
        "action": _text("As PyTorch's history names it.", "string"),
        "address": _text("Of the block or segment.", "integer"),
        "size": _text("Bytes.", "integer"),
    })  # fmt: skip
    no_event = {"anyOf": [event, {"type": "null"}], "description": "Null for none."}
    made.made["Difference"] = _object(_first_sentence(Difference), {
        "event": _text("Its number.", "integer"), "recorded": no_event, "replayed": no_event,
    })  # fmt: skip
    replay["conf_without_effect"] = {
        **{"type": "object", "additionalProperties": {"type": "string"}},
        **_described(replay["conf_without_effect"].get("description")),
    }
    row = {**made.keys(Case), **{k: v for k, v in made.keys(Row).items() if k != "case"}}
    made.made["Row"] = _object(_first_sentence(Row), row)
    card = made.keys(GpuProfile)
    card["convolutions"] = _text("How many convolutions were measured on the card.", "integer")
    card["searches"] = _text("How many of them with cudnn.benchmark.", "integer")
    doctor = {
        "is_complete": _text("Whether no command would make more work.", "boolean"),
        "predicts": _text("Whether predict works here; else the exit status is 1.", "boolean"),
        **made.keys(Diagnosis),
    }
    machine = _machine(made)
    host = _object("A machine.", {
        "host": _text("Its name.", "string"),
        "error": _text("Why it gave no answer.", "string", "null"),
        **machine,
    })  # fmt: skip
    hosts = {"hosts": {"type": "array", "items": host, "description": "A machine each."}}
    export = {
        "export": _text("The format.", "string"),
        "file": _text("The file that was written.", "string"),
        "file_bytes": _text("Its size.", "integer"),
    }
    explained = {
        **made.keys(RanksParts),
        "explanations": {
            "type": "object",
            "additionalProperties": made.of(ExplanationParts),
            "description": "By rank.",
        },
    }
    url = {"url": _text("Where the page is served.", "string")}
    prediction |= words | {"may_not_fit": doubtful, "caveats": caveats}
    return {
        "predict": _object("predict: a script on a card.", prediction),
        "predict_check": _object("predict --check: it beside a recording.", made.keys(CheckParts)),
        "fit": _object("fit --vary: the largest value that fits.", fit),
        "fit_serving": _object("fit vllm serve: options and cards with which it serves.", serving),
        "fit_within": _object("fit --within: changes with which it fits.", plan),
        "sweep": _object("sweep: the rows of all cases.", made.keys(SweepParts)),
        "explain": _object("explain: a recording or a process.", made.keys(ExplanationParts)),
        "explain_ranks": _object("explain FOLDER: the ranks of a job.", explained),
        "replay": _object("replay: a device under a configuration.", replay),
        "view": _object("view: the page that was written.", made.keys(ViewResult)),
        "view_ranks": _object("view FOLDER: the page of a job.", made.keys(RanksViewResult)),
        "view_export": _object("view --export: the file that was written.", export),
        "view_serve": _object("view --serve: the page's address.", url),
        "top": _object("top: the GPUs and processes of this machine.", machine),
        "top_hosts": _object("top --host: those of several machines.", hosts),
        "gpus": _object("gpus: a card that can be simulated.", card),
        "doctor": _object("doctor: what works on this machine.", doctor),
        "run": _object("run --json FILE: a process's use of a GPU.", made.keys(ExitSummary)),
    }  # fmt: skip


def _machine(made: Definitions) -> dict[str, Any]:
    """Returns the schema of the keys that `top --json` prints for a machine.

    The keys are listed by hand, because the output leaves out some fields of the class `Machine`.
    """
    count = ("integer", "null")
    process = _object("A process on a GPU.", {
        "pid": _text("Its number.", "integer"),
        "program": _text("Its name.", "string", "null"),
        "runs_plimsoll": _text("Whether plimsoll runs in it.", "boolean"),
        "allocator": _text("Its allocator.", "string", "null"),
        "device": _text("The GPU, as the process counts.", *count),
        **{f"{name}_bytes": _text("Bytes.", *count) for name in (
            "driver", "context", "allocated", "active", "pending", "cached", "fragments",
            "reserved", "dedicated", "shared", "shared_allocated", "peak_allocated",
            "peak_reserved", "pinned",
        )},
        **{name: _text("Since its start.", *count) for name in (
            "num_alloc_retries", "num_ooms", "num_spills",
        )},
        "job": _text("The job that it belongs to.", "string", "null"),
        "rank": _text("Its rank there.", *count),
        "silent_seconds": _text("Since it last told its figures.", "number", "null"),
    })  # fmt: skip
    notes = {"type": "array", "items": {"type": "string"}, "description": "Lines for people."}
    made.made["TopProcess"] = process
    made.made["TopGpu"] = _object("A GPU.", {
        "label": _text("Its name in the table.", "string"),
        "name": _text("The card's name.", "string"),
        "uuid": _text("As the driver has it.", "string", "null"),
        "is_simulated": _text("Whether plimsoll simulates it.", "boolean"),
        "dedicated_total_bytes": _text("Its memory.", *count),
        "dedicated_used_bytes": _text("In use, by all processes.", *count),
        "shared_total_bytes": _text("The host's memory that it may use.", *count),
        "shared_used_bytes": _text("Of that, in use.", *count),
        "utilization": _text("The share of time that it works.", "number", "null"),
        "notes": notes,
        "processes": _list("Those that use it.", "TopProcess"),
    })  # fmt: skip
    return {"gpus": _list("Real ones first.", "TopGpu"), "notes": notes}


def schema_text() -> str:
    """Returns the contents of the schema's file."""
    return json.dumps(make_schema(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(schema_text())
