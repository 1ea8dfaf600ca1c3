"""`plimsoll top`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated

import typer

from plimsoll.base.errors import InputError
from plimsoll.base.files import NewFile, check_can_be_made
from plimsoll.base.json_text import json_line
from plimsoll.base.printable import printable
from plimsoll.cli.terminal import console, hint

if TYPE_CHECKING:
    from plimsoll.integrations.top.hosts import HostsWatch
    from plimsoll.integrations.top.model import Machine
    from plimsoll.integrations.top.process_table import SortKey
    from plimsoll.integrations.top.watch import Watch

_WIDTH_OF_FILES = 120


def top(
    once: Annotated[bool, typer.Option("--once", help="Print the memory once, and end.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, and end.")
    ] = False,
    interval: Annotated[
        float | None,
        typer.Option(help="Seconds between two updates.", metavar="SECONDS", show_default="1"),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            help="The column to sort by: driver, allocated, cached, fragments, program, pid or "
            "gpu.",
            metavar="COLUMN",
            show_default="driver",
        ),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="Another machine: its name for ssh, or the address of its metrics, as in "
            "http://node1:9400. Slurm's form, as in node[1-3,7], names several machines. "
            "Repeat --host for more machines.",
            metavar="HOST",
        ),
    ] = None,
    remote: Annotated[
        str | None,
        typer.Option(
            help="The command that runs plimsoll on the machines of --host.",
            show_default="plimsoll",
            metavar="COMMAND",
        ),
    ] = None,
    snapshot: Annotated[
        str | None,
        typer.Option(
            help="Write a snapshot of one process, and end. PROCESS is a PID, rank=N, or "
            "rank=N,job=NAME.",
            metavar="PROCESS",
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            help="The file to which --snapshot writes, or - (standard output).",
            metavar="FILE",
        ),
    ] = None,
) -> None:
    """Watch the memory of every GPU and process, here or on other machines.

    For a process that has loaded plimsoll, top shows the parts of its memory: context, allocated,
    cached and fragments. For other processes, top shows only the total that NVML reports. top also
    shows simulated cards.

    Exit status: 0 done; 2 bad input, or none of the hosts answers.
    """
    from plimsoll.integrations.top.host_list import hosts_in
    from plimsoll.integrations.top.hosts import HostsWatch, host_of
    from plimsoll.integrations.top.process_table import SORT_KEYS
    from plimsoll.integrations.top.watch import Watch

    if sort is not None and sort not in SORT_KEYS:
        raise InputError(f"unknown sort key {sort!r}; there are {', '.join(SORT_KEYS)}")
    if interval is not None and not 0.1 <= interval <= 3600:
        raise InputError(f"an interval lies within 0.1 and 3600 seconds, not {interval:g}")
    if as_json and sort is not None:
        raise InputError("--json does not sort: leave --sort out, or --json")
    if output is not None and snapshot is None:
        raise InputError("--output goes with --snapshot")
    if remote is not None and not host:
        raise InputError("--remote goes with --host")
    if snapshot is not None and (as_json or once or sort is not None or interval is not None):
        raise InputError(
            "--snapshot shows no table: leave out --json, --once, --sort and --interval"
        )
    looks_once = as_json or once
    if looks_once and interval is not None:
        option = "--json" if as_json else "--once"
        raise InputError(f"{option} looks once: leave --interval out, or {option}")
    has_terminal = all(end is not None and end.isatty() for end in (sys.stdin, sys.stdout))
    if interval is not None and not has_terminal:
        raise InputError("there is no terminal to refresh; use --once")
    hosts = None
    if host:
        names = dict.fromkeys(name for each in host for name in hosts_in(each))
        hosts = HostsWatch([host_of(name, remote or "plimsoll") for name in names])
    watch = hosts or Watch()
    if snapshot is not None:
        _snapshot(watch, snapshot, output)
    elif as_json and hosts is not None:
        _print_hosts(hosts)
    elif as_json:
        print(json_line(watch.look().to_dict()))
    elif once or not has_terminal:
        _print(watch.look(), sort or "driver", hosts, remote)
    else:
        from plimsoll.integrations.top.app import TopApp

        TopApp(
            watch.look, interval_seconds=interval or 1.0, sort=sort or "driver", hosts=hosts
        ).run()


def _snapshot(watch: Watch | HostsWatch, text: str, output: str | None) -> None:
    from plimsoll.integrations.top.hosts import HostsWatch
    from plimsoll.integrations.top.process_acts import send_snapshot, snapshot_path
    from plimsoll.integrations.top.process_choice import Choice

    choice = Choice.of(text)
    if output not in (None, "-"):
        check_can_be_made(Path(output))
    host, use = choice.find(watch.look())
    hosts = watch if isinstance(watch, HostsWatch) else None
    if output == "-":
        send_snapshot(use.pid, sys.stdout.buffer, host=host, hosts=hosts)
        return
    path = snapshot_path(use, Path()) if output is None else Path(output)
    with NewFile(path) as file:
        send_snapshot(use.pid, file, host=host, hosts=hosts)
    print(printable(f"{path}: process {use.pid}" + ("" if host is None else f" on {host}")))
    hint(["plimsoll", "explain", str(path)])


def _print_hosts(hosts: HostsWatch) -> None:
    told = [
        {"host": name, "error": found, "gpus": [], "notes": []}
        if isinstance(found, str)
        else {"host": name, "error": None, **found.to_dict()}
        for name, found in hosts.look_each().items()
    ]
    print(json_line({"hosts": told}))
    _check_answers(hosts)


def _print(machine: Machine, sort: SortKey, hosts: HostsWatch | None, remote: str | None) -> None:
    from plimsoll.integrations.top.process_table import Order
    from plimsoll.integrations.top.text import render

    # `render` leaves out columns on a narrow terminal, so it needs the terminal's true width.
    # `console().width` is never below a minimum.
    columns = get_terminal_size().columns if sys.stdout.isatty() else _WIDTH_OF_FILES
    view = render(machine, columns, Order(sort))
    console().print(view.text)
    rows = (row for row in view.rows if row.use is not None and row.use.counters is not None)
    row = next(rows, None)
    if row is not None and row.use is not None:
        command = _next_command(row.use.pid, row.gpu.host, hosts, remote)
        print(printable(f"next: {shlex.join(command)}"), file=sys.stderr)
    elif hosts is None:
        print("next: plimsoll run SCRIPT, whose memory is then shown here", file=sys.stderr)
    else:
        _check_answers(hosts)


def _check_answers(hosts: HostsWatch) -> None:
    """Raises InputError if none of the hosts answered."""
    if hosts.is_silent():
        raise InputError("none of the hosts answers; --host takes names that ssh can reach")


def _next_command(
    pid: int, host: str | None, hosts: HostsWatch | None, remote: str | None
) -> list[str]:
    """Returns a command that the user can run on this machine to learn more about a process.

    The process itself may run on another machine.
    """
    if host is None or hosts is None:
        return ["plimsoll", "explain", str(pid)]
    there = ["--host", hosts.login(host), *([] if remote is None else ["--remote", remote])]
    return ["plimsoll", "top", *there, "--snapshot", str(pid)]
