"""Tests `plimsoll top` on several machines: calls of ssh, their answers, and silent hosts."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll import InputError
from plimsoll.base.process_place import ProcessPlace
from plimsoll.base.telemetry.counters import read_processes
from plimsoll.base.telemetry.metrics import metrics
from plimsoll.integrations.top.hosts import HostsWatch, host_of
from plimsoll.integrations.top.metrics_host import MetricsHost
from plimsoll.integrations.top.model import Machine
from plimsoll.integrations.top.process_choice import Choice
from plimsoll.integrations.top.remote_json import machine_from_json, of_host
from plimsoll.integrations.top.ssh_host import SshHost
from plimsoll.integrations.top.text import render
from tests.recordings import ROOT
from tests.unit.fake_nvml import FakeNvml, Gpu
from tests.unit.test_telemetry_metrics import FakeSource
from tests.unit.top_machines import busy_machine, device, machine, process
from tests.waiting import wait_for

PROGRAMS = ROOT / "tests" / "programs" / "telemetry"
METRICS_HOST_GET = "plimsoll.integrations.top.metrics_host.get"
MIB = 1 << 20


class Cluster:
    """Hosts behind a stub of ssh. Each is a folder in which processes publish."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.arguments = folder / "arguments"
        self.stack = stack

    def add(self, host: str) -> None:
        (self.folder / host).mkdir()

    def answer(self, host: str, program: str) -> None:
        """Makes a host answer with the output of a program."""
        (self.folder / "answers").mkdir(exist_ok=True)
        (self.folder / "answers" / host).write_text(program)

    def run(self, host: str, mib: int, **environment: str) -> int:
        """Starts a process on a host. Returns its process id."""
        started = subprocess.Popen(
            [sys.executable, str(PROGRAMS / "ranked.py"), str(mib)],
            stdin=subprocess.PIPE,
            env={**os.environ, "XDG_RUNTIME_DIR": str(self.folder / host), **environment},
        )
        self.stack.callback(started.wait)
        assert started.stdin is not None
        self.stack.callback(started.stdin.close)
        folder = self.folder / host / "plimsoll"
        wait_for(lambda: any(p.pid == started.pid for p in read_processes(only=folder)))
        return started.pid


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Puts a stub of ssh on the PATH. Yields a cluster without hosts.

    The hosts' folders will have short paths, because the path of a Unix socket must be short.
    """
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "ssh").write_text(f'#!/bin/sh\nexec {sys.executable} {PROGRAMS}/stub_ssh.py "$@"\n')
    (programs / "plimsoll").write_text(f'#!/bin/sh\nexec {sys.executable} -m plimsoll "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    with ExitStack() as stack:
        hosts = Path(stack.enter_context(TemporaryDirectory()))
        (hosts / "here").mkdir()
        monkeypatch.setenv("HOSTS", str(hosts))
        monkeypatch.setenv("ARGUMENTS", str(hosts / "arguments"))
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(hosts / "here"))
        yield Cluster(hosts, stack)


def command(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "plimsoll", *arguments], capture_output=True, check=False
    )


@pytest.mark.long
def test_several_machines_are_one_screen(cluster: Cluster) -> None:
    cluster.add("n1")
    cluster.add("n2")
    first = cluster.run("n1", 300, RANK="0", PLIMSOLL_JOB="llama")
    second = cluster.run("n2", 400, RANK="1", PLIMSOLL_JOB="llama")
    hosts = ("--host", "n1", "--host", "gone", "--host", "n2")
    done = command("top", "--once", *hosts)
    assert done.returncode == 0
    lines = done.stdout.decode().splitlines()
    # The number of processes varies, because this user's other processes appear on both hosts.
    assert lines[0].startswith("2 hosts, ")
    reason = "ssh: Could not resolve hostname gone: Name or service not known"
    table = next(place for place, line in enumerate(lines) if line.startswith("    PID"))
    for host, pid, rank in (("n1", first, "0"), ("n2", second, "1")):
        (gpu,) = (line for line in lines[:table] if line.startswith(f"sim {host}:0 of {pid} T4 "))
        assert f" {300 + 100 * int(rank)}.00 MiB of 16.00 GiB" in gpu
        (row,) = (line.split() for line in lines[table:] if line.split()[:1] == [str(pid)])
        assert row[1:5] == ["sim", f"{host}:0", "rank", rank]
    assert lines[:table].count(f"gone does not answer: {reason}") == 1
    found = json.loads(command("top", "--json", *hosts).stdout)
    assert [each["host"] for each in found["hosts"]] == ["n1", "gone", "n2"]
    assert [each["error"] for each in found["hosts"]] == [None, reason, None]
    uses = [use for gpu in found["hosts"][2]["gpus"] for use in gpu["processes"]]
    (use,) = (use for use in uses if use["pid"] == second)
    assert (use["job"], use["rank"], use["allocated_bytes"]) == ("llama", 1, 400 * MIB)


def test_ssh_is_asked_without_a_shell_and_without_questions(cluster: Cluster) -> None:
    cluster.add("me@n1")
    SshHost("me@n1").look()
    SshHost("me@n1", "plimsoll").look()
    asked = [json.loads(line) for line in cluster.arguments.read_text().splitlines()]
    options = ["-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5"]
    assert asked == [[*options, "--", "me@n1", "plimsoll top --json"]] * 2


def test_the_command_there_is_one_word_to_its_shell(cluster: Cluster) -> None:
    cluster.add("n1")
    with pytest.raises(InputError, match="no command 'plimsoll; touch x'; --remote says where"):
        SshHost("n1", "plimsoll; touch x").look()
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize(
    "name",
    [
        "",
        "-oProxyCommand=touch x",
        "a;b",
        "$(touch x)",
        "a b",
        "a\nb",
        "`x`",
        "ü",
        "a%h",
        "x" * 300,
    ],
)
def test_what_is_no_host_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="is no host: give a name for ssh, such as user@node1"):
        host_of(name)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("print('hello')", "its answer is none of plimsoll top: no JSON"),
        ("print('[1]')", "its answer is none of plimsoll top: no list of gpus"),
        ("print('[' * 100000)", "its answer is none of plimsoll top"),
        ("import sys; sys.exit('\\x1b[2Jgo away')", r"\\x1b\[2Jgo away"),
        ("import os; os._exit(3)", "ssh ended with status 3"),
        ("while True: print('x' * 65536)", "its answer is too long, over 4"),
        ("import time; time.sleep(60)", "no answer within 2 s"),
        ("import sys, time\nwhile True: sys.stderr.write('x' * 65536)", "no answer within 2 s"),
    ],
    ids=["text", "list", "deep", "escapes", "status", "endless", "silent", "complaining"],
)
def test_a_host_that_answers_badly_is_told(
    cluster: Cluster, program: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "2 s" in expected:
        monkeypatch.setattr("plimsoll.integrations.top.ssh_host._LOOK_SECONDS", 2.0)
    cluster.answer("n1", program)
    with pytest.raises(InputError, match=expected):
        SshHost("n1").look()


def test_without_ssh_a_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InputError, match="ssh cannot be run: No such file or directory"):
        SshHost("n1").look()


class FakeHost:
    def __init__(self, name: str, error: str | None = None) -> None:
        self.name = self.login = name
        self.error = error
        self.looks = 0
        self.asked: list[int] = []

    def look(self) -> Machine:
        self.looks += 1
        if self.error is not None:
            raise InputError(self.error)
        return of_host(busy_machine(), self.name)

    def write_snapshot(self, pid: int, file: IO[bytes]) -> None:
        self.asked.append(pid)
        file.write(b"%d" % pid)


def test_who_does_not_answer_is_left_alone_for_a_while() -> None:
    now = 0.0
    good, bad = FakeHost("good"), FakeHost("bad", "it is off")
    watch = HostsWatch([good, bad], clock=lambda: now)
    assert watch.look().silent_hosts == (("bad", "it is off"),)
    now = 29.0
    assert watch.look().silent_hosts == (("bad", "it is off"),)
    assert (good.looks, bad.looks) == (2, 1)
    now, bad.error = 31.0, None
    assert watch.look().silent_hosts == ()
    assert {gpu.host for gpu in watch.look().gpus} == {"good", "bad"}


class FaultyHost(FakeHost):
    def look(self) -> Machine:
        raise ZeroDivisionError("\x1b[2Jdivision")


def test_a_fault_at_the_answer_of_one_host_is_a_line_of_it() -> None:
    found = HostsWatch([FakeHost("good"), FaultyHost("bad")]).look()
    assert {gpu.host for gpu in found.gpus} == {"good"}
    (silent,) = found.silent_hosts
    assert silent[0] == "bad"
    assert "plimsoll fails at its answer: ZeroDivisionError(" in silent[1]
    assert "\x1b" not in silent[1]


def test_hosts_with_the_same_numbers_are_told_apart() -> None:
    found = HostsWatch([FakeHost("a"), FakeHost("b")]).look()
    assert found.num_processes == 2 * busy_machine().num_processes
    view = render(found, 120)
    assert len({row.key for row in view.rows}) == len(view.rows)
    assert all(len(line) <= 120 for line in view.text.plain.splitlines())
    assert "a:0" in view.text.plain


# --- JSON from other machines --------------------------------------------------------------------


def test_a_machine_survives_its_json() -> None:
    there = busy_machine()
    found = machine_from_json(json.dumps({"schema": 1, **there.to_dict()}).encode(), "n1")
    told = [{**gpu, "label": f"n1:{gpu['label']}"} for gpu in there.to_dict()["gpus"]]
    assert found.to_dict()["gpus"] == told
    assert {gpu.host for gpu in found.gpus} == {"n1"}


def test_an_older_version_says_less() -> None:
    use = {"pid": 7, "program": "a.py", "runs_plimsoll": True}
    values = {"gpus": [{"label": "0", "name": "H100", "processes": [use]}], "notes": []}
    (gpu,) = machine_from_json(json.dumps(values).encode(), "n1").gpus
    assert (gpu.dedicated_total_bytes, gpu.processes[0].driver_bytes) == (None, None)


@pytest.mark.parametrize(
    "number", ["1" + "0" * 400, "1e400", "Infinity", "NaN", "-1", "1e300", '"7"', "9" * 5000]
)
def test_an_impossible_time_of_silence_is_refused(number: str) -> None:
    use = f'{{"pid": 7, "silent_seconds": {number}}}'
    text = f'{{"gpus": [{{"label": "0", "name": "H100", "processes": [{use}]}}]}}'
    with pytest.raises(InputError, match=r"its answer is none of plimsoll top: (an imp|no JSON)"):
        machine_from_json(text.encode(), "n1")


@pytest.mark.parametrize(
    ("host", "remote", "expected"),
    [
        ("me@n1", [], "plimsoll top --host me@n1 --snapshot 7"),
        ("n1", ["--remote", "plimsoll"], "plimsoll top --host n1 --remote plimsoll --snapshot 7"),
    ],
)
def test_the_next_command_for_a_process_of_a_host_names_the_host(
    cluster: Cluster, host: str, remote: list[str], expected: str
) -> None:
    use = '{"pid": 7, "program": "a.py", "runs_plimsoll": true, "silent_seconds": 60}'
    text = f'{{"gpus": [{{"label": "0", "name": "H100", "processes": [{use}]}}]}}'
    cluster.answer(host, f"print({text!r})")
    done = command("top", "--once", "--host", host, *remote)
    assert done.stderr.decode() == f"next: {expected}\n"
    assert f"process 7 on {host} has said nothing for 60 s" in done.stdout.decode()
    cluster.answer(host, "print('no')")
    done = command("top", "--once", "--host", host)
    assert done.stderr.startswith(b"plimsoll: none of the hosts answers; ")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -(10**400), 1e300])
    | st.floats()
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@given(st.data())
def test_whatever_a_machine_says_is_shown_or_refused(data: st.DataObject) -> None:
    values: Any = busy_machine().to_dict()
    gpu = data.draw(st.sampled_from(values["gpus"]))
    place = data.draw(st.sampled_from([values, gpu, gpu["processes"][0]]))
    place[data.draw(st.sampled_from(sorted(place)))] = data.draw(JSON)
    try:
        found = machine_from_json(json.dumps(values).encode(), "n1")
    except InputError:
        return
    assert render(found, 80).text.plain.replace("\n", "").isprintable()


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"null", b"7", b'{"gpus": 7}'], ids=repr)
def test_what_is_no_machine_is_refused(content: bytes) -> None:
    with pytest.raises(InputError, match="its answer is none of plimsoll top"):
        machine_from_json(content, "n1")


def test_names_from_elsewhere_cannot_move_a_cursor() -> None:
    values = {
        "gpus": [{"label": "\x1b[2J", "name": "\x1b]0;x\x07", "processes": []}],
        "notes": ["\r"],
    }
    shown = render(machine_from_json(json.dumps(values).encode(), "n1"), 80).text.plain
    assert shown.replace("\n", "").isprintable()


# --- metrics --------------------------------------------------------------------------------------


@contextmanager
def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    pytest.importorskip("prometheus_client")
    monkeypatch.setattr("plimsoll.base.telemetry.publisher._source", FakeSource())
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("PLIMSOLL_JOB", "llama")
    with closing(metrics(0)) as server:
        yield f"http://127.0.0.1:{server.port}"


def test_metrics_show_a_machine_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(monkeypatch) as address:
        name = address.removeprefix("http://")
        found = HostsWatch([host_of(address), host_of("http://127.0.0.1:1")]).look()
    first, second = found.gpus
    assert (first.label, first.name, first.dedicated_total_bytes) == (f"{name}:0", "H100", 100)
    (use,) = first.processes
    assert use.counters is not None
    assert use.process is not None
    given = FakeSource().read().devices[0]
    for key in ("allocated_bytes", "reserved_bytes", "fragments_bytes", "num_ooms", "num_spills"):
        assert getattr(use.counters, key) == getattr(given, key)
    assert (use.pid, use.process.place.rank, use.process.place.job) == (os.getpid(), 3, "llama")
    assert second.processes[0].context_bytes is None
    assert found.silent_hosts == (("127.0.0.1:1", "Connection refused"),)
    with pytest.raises(InputError, match="metrics give no snapshots: name the host for ssh"):
        host_of(address).write_snapshot(1, sys.stdout.buffer)


@pytest.mark.parametrize(
    "address", ["http://", "http://a:0", "http://a:99999", "http://a b", "http://a\x1b[2J"]
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(InputError, match="is no address such as http://node1:9400"):
        host_of(address)


def some(content: bytes) -> Callable[[socket.socket], None]:
    """Returns a server that sends an answer and closes the connection."""
    return lambda connection: connection.sendall(content)


def ever(content: bytes, again: bytes, seconds: float = 0.0) -> Callable[[socket.socket], None]:
    """Returns a server that begins an answer and sends more of it for ever."""

    def give(connection: socket.socket) -> None:
        connection.sendall(content)
        while True:
            connection.sendall(again)
            time.sleep(seconds)

    return give


@contextmanager
def stranger(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Runs a server that is not plimsoll's. Yields its address."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                threading.Thread(target=give, args=(connection,), daemon=True).start()

    def give(connection: socket.socket) -> None:
        with suppress(OSError), connection:
            connection.recv(4096)
            answer(connection)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


OK = b"HTTP/1.1 200 OK\r\n"
PROCESS = b'plimsoll_process_info{pid="5",program="x"} 1\n'


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (some(b""), "Remote end closed connection without response"),
        (some(b"\x1b[2J\r\n"), "its answer is not HTTP: .*x1b"),
        (some(b"HTTP/1.1 404 gone\r\n\r\n"), "it answers 404 gone"),
        (some(b"HTTP/1.1 304 same\r\n\r\n"), "it answers 304 same"),
        (some(OK + b"Content-Length: 9\r\n\r\nabc"), "its answer breaks off"),
        (some(OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc"), "its answer breaks off"),
        (some(OK + b"Content-Length: -5\r\n\r\nabc"), "its answer is none of plimsoll.metrics"),
        (some(OK + b"X: y\r\n" * 200), "its answer is not HTTP: .*100 headers"),
        (some(OK + b"\r\n" + PROCESS * 5000), "its answer is too long for one of plimsoll.metr"),
        (some(OK + b'\r\nplimsoll_a{a="' + b"\\" * 9999), "its answer is too long for one of"),
        (ever(OK + b"\r\n", b"a" * (1 << 16)), "its answer is too long, over 4.00 MiB"),
        (ever(OK + b"\r\n", b"#", 0.1), "no answer within 0.4 s"),
        (ever(OK + b"X: ", b"a", 0.1), "no answer within 0.4 s"),
        (ever(b"", b"HTTP/1.1 100 more\r\n\r\n"), "no answer within 0.4 s"),
        (ever(b"", b"", 0.1), "no answer within 0.4 s"),
    ],
)
def test_an_address_that_answers_badly_is_told_in_time(
    answer: Callable[[socket.socket], None], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("prometheus_client")
    if "0.4 s" in expected:
        monkeypatch.setattr("plimsoll.integrations.top.metrics_host._SECONDS", 0.4)
    with stranger(answer) as address, pytest.raises(InputError, match=expected) as caught:
        host_of(address).look()
    assert str(caught.value).isprintable()


def test_redirects_are_not_followed() -> None:
    asked: list[socket.socket] = []
    with stranger(asked.append) as secret:
        for place in (f"{secret}/delete?all=1", "file:///etc/passwd", "/metrics2"):
            moved = some(b"HTTP/1.1 302 x\r\nLocation: %s\r\n\r\n" % place.encode())
            with (
                stranger(moved) as address,
                pytest.raises(InputError, match=f"not followed; .* {re.escape(place)}$"),
            ):
                host_of(address).look()
    assert asked == []


def test_a_name_takes_no_longer_than_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: looked_up.wait(60) or [])
    monkeypatch.setattr("plimsoll.integrations.top.metrics_host._SECONDS", 0.2)
    try:
        with pytest.raises(InputError, match=r"no answer within 0\.2 s"):
            host_of("http://slow:9400").look()
    finally:
        looked_up.set()


def test_many_samples_of_others_are_passed_over() -> None:
    pytest.importorskip("prometheus_client")
    content = OK + b"\r\n" + b'other{le="1"} 1\n' * 100_000 + PROCESS
    with stranger(some(content)) as address:
        assert HostsWatch([host_of(address)]).look().silent_hosts == ()


def test_a_name_that_cannot_be_looked_up_is_told() -> None:
    assert HostsWatch([host_of(f"http://{'a' * 70}..b/")]).look().silent_hosts


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello there",
        "plimsoll_process_info",
        'plimsoll_process_info{pid="1"',
        'plimsoll_process_info{job_id="a\\nb"} 1',
        'plimsoll_process_info{pid="1"} x',
    ],
)
def test_what_are_no_metrics_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("prometheus_client")
    monkeypatch.setattr(METRICS_HOST_GET, lambda *_, **__: text.encode())
    with pytest.raises(InputError, match=r"its answer is none of plimsoll\.metrics"):
        MetricsHost("http://n1:9400").look()


OTHER_FIGURES = (
    *("active_bytes", "reserved_bytes", "shared_bytes", "peak_allocated_bytes"),
    *("peak_reserved_bytes", "alloc_retries_total", "ooms_total", "spills_total"),
)


@given(st.text(max_size=40), st.sampled_from(["9" * 30, "-1", "NaN", "+Inf", "1e400", "7"]))
def test_metrics_of_anybody_are_shown_or_refused(label: str, number: str) -> None:
    pytest.importorskip("prometheus_client")
    escaped = label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    lines = [
        f'plimsoll_process_info{{pid="{escaped}",program="{escaped}",rank="{escaped}"}} 1',
        f'plimsoll_device_info{{device="0",name="{escaped}",uuid="{escaped}"}} 1',
        f'plimsoll_allocated_bytes{{device="0"}} {number}',
        *(f'plimsoll_{each}{{device="0"}} 7' for each in OTHER_FIGURES),
    ]
    is_figure = number == "7"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(METRICS_HOST_GET, lambda *_, **__: ("\n".join(lines) + "\n").encode())
        try:
            found = MetricsHost("http://n1:9400").look()
        except InputError:
            assert not is_figure
            return
    assert is_figure, "an unknown figure would count as nothing"
    assert render(found, 80).text.plain.replace("\n", "").isprintable()


# --- snapshots ------------------------------------------------------------------------------------


@pytest.mark.long
def test_any_rank_of_a_job_gives_a_snapshot(cluster: Cluster) -> None:
    cluster.add("n1")
    cluster.add("n2")
    cluster.run("n1", 300, RANK="0", PLIMSOLL_JOB="llama")
    pid = cluster.run("n2", 400, RANK="3", PLIMSOLL_JOB="llama")
    hosts = ("--host", "n1", "--host", "n2")
    done = command("top", "--snapshot", "rank=3,job=llama", *hosts)
    assert done.stdout.decode() == f"plimsoll-rank3-1.pickle: process {pid} on n2\n", done.stderr
    content = Path("plimsoll-rank3-1.pickle").read_bytes()
    assert pickle.loads(content) == {"segments": [], "size": 400 * MIB}
    done = command("top", "--snapshot", "rank=0,job=llama", *hosts, "-o", "mine.pickle")
    assert done.stderr == b""
    assert pickle.loads(Path("mine.pickle").read_bytes())["size"] == 300 * MIB
    done = command("top", "--snapshot", "rank=7,job=llama", *hosts, "--host", "gone")
    assert done.returncode == 2
    assert b"there is no such process; plimsoll runs in process " in done.stderr
    assert b"; gone does not answer: ssh: Could not resolve" in done.stderr
    assert len(list(Path.cwd().iterdir())) == 2


def test_a_rank_of_this_machine_gives_a_snapshot(cluster: Cluster) -> None:
    first = cluster.run("here", 100, RANK="3", PLIMSOLL_JOB="a")
    cluster.run("here", 200, RANK="3", PLIMSOLL_JOB="b")
    done = command("top", "--snapshot", "rank=3")
    assert done.returncode == 2
    assert b"several processes are meant: " in done.stderr
    done = command("top", "--snapshot", "rank=3,job=b", "--output", "-")
    assert done.stderr == b""
    assert pickle.loads(done.stdout)["size"] == 200 * MIB
    done = command("top", "--snapshot", str(first))
    assert done.stdout.decode() == f"plimsoll-rank3-1.pickle: process {first}\n"


def test_a_snapshot_that_breaks_off_leaves_no_file(cluster: Cluster) -> None:
    cluster.add("n1")
    pid = cluster.run("n1", 300, RANK="0")
    answer = command("top", "--json", "--host", "n1").stdout
    told = json.dumps({"schema": 1, **json.loads(answer)["hosts"][0]})
    cluster.answer(
        "n1",
        "import os, sys\n"
        f"if os.getppid() and 'snapshot' in open({str(cluster.arguments)!r}).read():\n"
        "    print('half'); sys.exit('plimsoll: it died')\n"
        f"print({told!r})\n",
    )
    done = command("top", "--snapshot", str(pid), "--host", "n1")
    assert (done.returncode, done.stderr) == (2, b"plimsoll: n1: it died\n")
    assert list(Path.cwd().iterdir()) == []


def test_several_processes_are_told_apart() -> None:
    ranked = process(4711, device(), place=ProcessPlace(3, 0, 8, "n1", "llama"))
    there = machine(FakeNvml(Gpu("GPU-aa")), ranked)
    found = Machine((*of_host(there, "a").gpus, *of_host(there, "b").gpus))
    told = "process 4711 rank=3 job=llama on a; process 4711 rank=3 job=llama on b"
    with pytest.raises(InputError, match=f"^several processes are meant: {told}$"):
        Choice.of("rank=3").find(found)
    assert Choice.of("rank=3,job=llama").find(there)[1].pid == 4711
    assert Choice.of("pid=4711").find(of_host(there, "a"))[0] == "a"
    with pytest.raises(InputError, match="there is no such process; plimsoll runs in process 4711"):
        Choice.of("rank=3,job=other").find(there)


@pytest.mark.parametrize("text", ["", "rank", "rank=x", "rank=1,rank=2", "job=a", "gpu=1", "-1"])
def test_what_names_no_process_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="names no process: give a PID, such as 4711"):
        Choice.of(text)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--output", "a"], b"--output goes with --snapshot"),
        (["--remote", "a"], b"--remote goes with --host"),
        (["--snapshot", "1", "--json"], b"--snapshot shows no table"),
        (["--host", "a;b", "--once"], b"'a;b' is no host"),
    ],
)
def test_options_that_do_not_go_together_are_told(options: list[str], expected: bytes) -> None:
    done = command("top", *options)
    assert done.returncode == 2
    assert expected in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_all_hosts_are_asked_at_the_same_time() -> None:
    together = threading.Barrier(6, timeout=60)

    class Waiting(FakeHost):
        def look(self) -> Machine:
            together.wait()
            return super().look()

    assert HostsWatch([Waiting(name) for name in "abcdef"]).look().silent_hosts == ()


SSHD = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
StrictModes no
PasswordAuthentication no
UsePAM no
PidFile none
SetEnv XDG_RUNTIME_DIR={runtime}
"""
CLIENT = """
Host there
  HostName 127.0.0.1
  Port {port}
  IdentityFile {folder}/user
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known
  StrictHostKeyChecking accept-new
"""


@pytest.mark.long
def test_a_real_ssh_shows_a_machine_and_brings_a_snapshot(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, keys = shutil.which("sshd", path="/usr/sbin:/usr/bin"), shutil.which("ssh-keygen")
    real = shutil.which("ssh", path="/usr/bin:/bin")
    if server is None or keys is None or real is None:
        pytest.skip("OpenSSH is not installed (apt: openssh-server)")
    folder = cluster.folder
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    for key in ("host", "user"):
        subprocess.run([keys, "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
    places = {"port": port, "folder": folder, "runtime": folder / "there"}
    (folder / "sshd").write_text(SSHD.format(**places))
    (folder / "client").write_text(CLIENT.format(**places))
    ssh = folder / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec {real} -F {folder}/client "$@"\n')
    ssh.chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    if os.geteuid() == 0:
        # sshd needs this folder. On a normal start, the system's ssh service creates it.
        Path("/run/sshd").mkdir(exist_ok=True)
    cluster.add("there")
    pid = cluster.run("there", 300, RANK="5", PLIMSOLL_JOB="real")
    remote = folder / "remote"
    remote.write_text(f'#!/bin/sh\nexec {sys.executable} -m plimsoll "$@"\n')
    remote.chmod(0o700)
    started = subprocess.Popen([server, "-D", "-e", "-f", str(folder / "sshd")])
    cluster.stack.callback(started.wait)
    cluster.stack.callback(started.terminate)
    host = SshHost("there", str(remote))
    wait_for(lambda: isinstance(HostsWatch([host]).look_each()["there"], Machine))
    assert pid in {use.pid for gpu in host.look().gpus for use in gpu.processes}
    asked = ("--host", "there", "--remote", str(remote), "-o", "a.pickle")
    done = command("top", "--snapshot", "rank=5,job=real", *asked)
    assert done.stdout.decode() == f"a.pickle: process {pid} on there\n", done.stderr
    assert pickle.loads(Path("a.pickle").read_bytes())["size"] == 300 * MIB
    with pytest.raises(InputError, match="no command '/nowhere'; --remote says where it is"):
        SshHost("there", "/nowhere").look()
    (folder / "user").unlink()
    with pytest.raises(InputError, match="Permission denied"):
        host.look()
