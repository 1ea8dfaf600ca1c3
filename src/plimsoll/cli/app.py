"""The command `plimsoll`: its verbs, and how it ends.

Exit status:
    0: done.
    1: the answer is no: the script does not fit, or what is compared differs.
    2: bad input, or the script fails.
    3: the answer is not known.

`plimsoll run` exits with the script's own status instead.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from plimsoll.base.errors import InputError, ScriptError
from plimsoll.base.printable import printable
from plimsoll.base.systems import ANYWHERE, require_linux
from plimsoll.cli.doctor import doctor
from plimsoll.cli.explain import explain
from plimsoll.cli.fit import fit
from plimsoll.cli.gpus import gpus
from plimsoll.cli.help_layout import VerbHelp, VerbsHelp, epilog
from plimsoll.cli.interrupts import admit_interrupts
from plimsoll.cli.launchers import own_arguments
from plimsoll.cli.measure import measure
from plimsoll.cli.metrics import metrics
from plimsoll.cli.predict import predict
from plimsoll.cli.replay import replay
from plimsoll.cli.run import run
from plimsoll.cli.sweep import sweep
from plimsoll.cli.top import top
from plimsoll.cli.view import view

if TYPE_CHECKING:
    from collections.abc import Callable

_TAKE_SCRIPTS = (" predict", " fit")
# These verbs accept a launcher, such as torchrun, without `--` before the launcher's options. `run`
# also needs no `--`, because it passes all words behind a script to that script.
_TAKE_LAUNCHERS = ("predict", "fit", "sweep")
_HELP = {"help_option_names": ["-h", "--help"]}
_UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__base__)


class _Verb(VerbHelp):
    """A verb. Error messages about its arguments name the verb, so that users find its help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if self.name in _TAKE_LAUNCHERS:
            args = own_arguments(args)
        try:
            return super().parse_args(ctx, args)
        except _UsageError as error:
            error.ctx = error.ctx or ctx
            raise


app = typer.Typer(
    name="plimsoll",
    help="Predict, see and stretch the GPU memory of PyTorch programs.",
    cls=VerbsHelp,
    epilog="Exit status: 0 done; 1 the answer is no (a program does not fit, or results differ); 2 "
    "bad input, or the script fails; 3 the answer is not known. plimsoll run ends with the "
    "script's own status.\n\n" + epilog("plimsoll predict train.py --gpu 'RTX 4090'"),
    no_args_is_help=True,
    context_settings=_HELP,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@dataclass(frozen=True)
class Verb:
    """A verb of the command.

    Attributes:
        function: Gets the parsed arguments, calls the Python API and prints.
        module: The module that does the verb's work.
        line: The verb's line in the list of all verbs, which `plimsoll --help` prints.
        example: A whole command with the verb, for the end of its help.
    """

    function: Callable[..., None]
    module: str
    line: str
    example: str

    @property
    def name(self) -> str:
        """The verb as people type it on the command line."""
        return self.function.__name__


VERBS: dict[str, tuple[Verb, ...]] = {
    "Predict, without a GPU": (
        Verb(
            predict,
            "plimsoll.prediction.predict",
            "Say how much memory a CUDA script will need.",
            "plimsoll predict train.py --gpu 'RTX 4090' -- --batch-size 8",
        ),
        Verb(
            fit,
            "plimsoll.prediction.predict",
            "Find changes that make a script fit a card.",
            "plimsoll fit train.py --vary=--batch-size --gpu 'RTX 4090'",
        ),
        Verb(
            sweep,
            "plimsoll.prediction.sweeps.sweep",
            "Say which card and which settings are best.",
            "plimsoll sweep train.py --vary gpu=L4,H100 --goal most-samples",
        ),
        Verb(
            gpus,
            "plimsoll.engine.gpus.profiles",
            "List the cards that can be simulated.",
            "plimsoll gpus 4090",
        ),
    ),
    "Run": (
        Verb(
            run,
            "plimsoll.prediction.predict",
            "Run a script with plimsoll's allocator, or on a simulated card.",
            "plimsoll run --record run.plim train.py --batch-size 8",
        ),
    ),
    "See what holds the memory, and why": (
        Verb(
            explain,
            "plimsoll.explanation.explain",
            "Say why a recorded program used its memory.",
            "plimsoll explain run.plim",
        ),
        Verb(
            view,
            "plimsoll.page.server",
            "Show a recording as a page for a browser.",
            "plimsoll view run.plim -o run.html",
        ),
        Verb(
            replay,
            "plimsoll.engine.replays.replay",
            "Say how much memory a recorded program needs under other settings.",
            "plimsoll replay run.plim --conf expandable_segments:True",
        ),
        Verb(
            top,
            "plimsoll.integrations.top.watch",
            "Watch the memory of every GPU and process.",
            "plimsoll top --host node1 --host node2",
        ),
        Verb(
            metrics,
            "plimsoll.base.telemetry.prometheus_files",
            "Print rules for Prometheus, or a dashboard for Grafana.",
            "plimsoll metrics --rules > plimsoll.rules.yml",
        ),
    ),
    "Set up": (
        Verb(
            doctor,
            "plimsoll.integrations.diagnosis.diagnose",
            "Check which commands work here, and show how to fix the others.",
            "plimsoll doctor",
        ),
        Verb(
            measure,
            "plimsoll.integrations.measuring.measure",
            "Measure a card of this machine, for more exact predictions.",
            "plimsoll measure --gpu 0",
        ),
    ),
}
"""The verbs by purpose."""


def _starting(verb: Verb) -> Callable[..., None]:
    """Wraps a verb's function: imports `verb.module`, unblocks SIGINT, calls the function."""

    @wraps(verb.function)
    def start(*arguments: Any, **named: Any) -> None:
        try:
            if verb.name not in ANYWHERE:
                require_linux(f"plimsoll {verb.name}")
            import_module(verb.module)
            admit_interrupts()
            verb.function(*arguments, **named)
        except KeyboardInterrupt:
            sys.exit(130)

    return start


for purpose, verbs in VERBS.items():
    for verb in verbs:
        # In `plimsoll run`, options after the script belong to the script.
        settings = {**_HELP, "allow_interspersed_args": verb.function is not run}
        command = app.command(
            cls=_Verb,
            context_settings=settings,
            short_help=verb.line,
            epilog=epilog(verb.example),
            rich_help_panel=purpose,
        )
        command(_starting(verb))


def _show_version(asked: bool) -> None:
    if asked:
        from plimsoll import __version__

        typer.echo(f"plimsoll {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass


def _file_of(error: OSError) -> str:
    """Returns "NAME: " for the file on which an operation failed; "" if the file is unknown."""
    if error.filename is not None:
        return f"{error.filename}: "
    try:
        os.write(1, b"\n")
    except OSError:
        return "standard output: "
    return ""


def _reworded(message: str, context: str) -> str:
    """Returns the message about a bad command line, with what the user probably meant."""
    message = message.rstrip(".")
    message = message[:1].lower() + message[1:]
    if message.startswith("invalid value for '--gpus'"):
        return "--gpus takes a number of cards, and --gpu a card's name"
    if message.startswith("no such option") and context.endswith(_TAKE_SCRIPTS):
        option, _, near = message.partition(" (")
        # No option of plimsoll has an underscore, so a similar one of plimsoll is not meant.
        near = "" if "_" in option or not near else f" ({near}"
        return f"{option}{near}; options of the script go after --"
    return message


def main() -> None:
    """Run the command line and exit."""
    # SystemExit, unlike the signal itself, lets `finally` remove temporary files.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if sys.stdout is None and sys.argv[1:2] != ["run"]:  # `run` prints no answer
        print("plimsoll: cannot print the answer: standard output is closed", file=sys.stderr)
        sys.exit(2)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # prints ? if the encoding lacks a character
    try:
        try:
            status = app(prog_name="plimsoll", standalone_mode=False)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # Python's own flush at exit is too late to report an error
        sys.exit(status)
    except _UsageError as error:
        if len(sys.argv) == 1:  # `plimsoll` without arguments shows its help
            error.show()
        else:
            context = error.ctx.command_path if error.ctx else "plimsoll"
            message = _reworded(error.format_message(), context)
            print(printable(f"plimsoll: {message}; see {context} --help"), file=sys.stderr)
        sys.exit(2)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # the reader, such as `head`, has ended
            sys.exit(0)
        raise
    except (InputError, ScriptError) as error:
        print(f"plimsoll: {error}", file=sys.stderr)
        sys.exit(2)
    except MemoryError:
        print("plimsoll: there is not enough memory for this file", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader ended before the last flush
        sys.stdout = None
        sys.exit(0)
    except OSError as error:
        why = f"{_file_of(error)}{error.strerror or error}"
        print(printable(f"plimsoll: {why}"), file=sys.stderr)
        sys.stdout = None  # Python must not flush it again at exit
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except Exception:  # Python itself would exit with 1, which means "no"
        traceback.print_exc()
        print("plimsoll: this is a bug in plimsoll; please report it", file=sys.stderr)
        sys.exit(2)
