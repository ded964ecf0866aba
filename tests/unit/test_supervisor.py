"""What the supervisor promises of any processes: here small ones that speak as ours do."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import metrics, planning
from penstock.capture.spec import ServiceSpec
from penstock.cli.main import main
from penstock.cli.outlet import Outlet
from penstock.config import Config
from penstock.core.position import Lsn
from penstock.ledger.lanes import LANES_FILE, LaneRegistry
from penstock.ledger.run_file import RunFile, Running, read_running
from penstock.supervisor.asking import running_status
from penstock.supervisor.events import Event
from penstock.supervisor.lines import Flood
from penstock.supervisor.process import Program
from penstock.supervisor.restarts import DELAY_S_MAX, FIRST_DELAY_S, LIVED_S, WINDOW_S, Restarts
from penstock.supervisor.samples import HOLDS_S, Samples
from penstock.supervisor.status import ProcessStatus
from penstock.supervisor.supervisor import Supervisor
from tests.conftest import wait_until

#: Leads until it is asked to stop, and writes down that it was.
OBEDIENT = """
import os, sys
from penstock.channel import Channel
channel = Channel()
name = channel.spec["name"]
def write(word):
    with open(channel.spec["journal"], "a") as journal:
        journal.write(f"{name} {word}\\n")
write("starts")
channel.state("leading" if name == "capture" else "running")
channel.metrics([["penstock_captured_rows_total", {}, 7.0], ["penstock_no_such", {}, 1.0]])
print("said by a library")
channel.stop_asked.wait()
channel.state("stopping")
write("stops")
"""
#: Says why it cannot live.
FAILING = """
import sys
from penstock.channel import Channel
channel = Channel()
channel.failed({"code": "source", "message": "The slot is gone."})
sys.exit(3)
"""
#: Fails while there is a file `broken` beside the journal, and is obedient when it is mended.
MENDABLE = OBEDIENT.replace(
    'write("starts")',
    """
import pathlib
if pathlib.Path(channel.spec["journal"]).with_name("broken").exists():
    channel.failed({"code": "storage", "message": "No space left."})
    sys.exit(7)
write("starts")
""",
)
#: Does not end when it is asked to.
STUBBORN = """
import time
from penstock.channel import Channel
channel = Channel()
channel.state("running")
while True:
    time.sleep(60)
"""
#: Obedient, and says much more than a pipe holds before it writes down that it does.
TALKATIVE = OBEDIENT.replace(
    'print("said by a library")',
    """
for number in range(1000):
    channel.note("x" * 1000)
    print("y" * 1000, flush=True)
write("has said all")
""",
)
#: Obedient, and does not lead while there is a file `held` beside the journal.
HOLDABLE = OBEDIENT.replace(
    'write("starts")',
    """
import pathlib, time
held = pathlib.Path(channel.spec["journal"]).with_name("held")
while held.exists() and not channel.stop_asked.is_set():
    time.sleep(0.02)
write("starts")
""",
)
#: Obedient, and in the state that a file `mood` beside the journal names.
MOODY = OBEDIENT.replace(
    'channel.state("leading" if name == "capture" else "running")',
    """
import pathlib
mood, said = pathlib.Path(channel.spec["journal"]).with_name("mood"), ""
while not channel.stop_asked.wait(0.02):
    if mood.read_text() not in ("", said):
        said = mood.read_text()
        channel.state(said)
""",
)
#: Says what nobody expects, then what everybody does.
ODD = OBEDIENT.replace(
    'write("starts")',
    """
for line in ('[]', '5', '{"event": "failed", "error": 7}', '{"event": "state", "state": []}', '[' * 100000,
             '{"event": "metrics", "samples": [["penstock_log_bytes", {}, 1' + '0' * 400 + ']]}',
             '{"event": "note"}', '{"event": {}}'):
    channel._out.write(line + "\\n")
write("starts")
""",
)


@dataclass
class Run:
    """A supervisor in a thread of this process."""

    directory: Path
    scripts: dict[str, str]
    restarts_max: int = 5
    parked_retry_s: float | None = None
    stop_timeout_s: float = 30.0
    events: list[Event] = field(default_factory=list)
    logged: list[tuple[str, str]] = field(default_factory=list)
    in_order: bool | None = None

    def __post_init__(self) -> None:
        self.supervisor = Supervisor(
            [self._program(name, script) for name, script in self.scripts.items()],
            listen="127.0.0.1:0",
            state=self.directory / "state",
            service=ServiceSpec("grpc+unix:///nowhere", token="secret"),
            restarts_max=self.restarts_max,
            parked_retry=None if self.parked_retry_s is None else timedelta(seconds=self.parked_retry_s),
            stop_timeout=timedelta(seconds=self.stop_timeout_s),
            report=self.events.append,
            log=lambda process, line: self.logged.append((process, line)),
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _program(self, name: str, script: str) -> Program:
        spec = {"name": name, "journal": str(self.directory / "journal")}
        return Program(name, (sys.executable, "-c", script), spec)

    def _run(self) -> None:
        self.in_order = self.supervisor.run()

    def process(self, name: str) -> ProcessStatus:
        return next(each for each in self.supervisor.snapshot().processes if each.name == name)

    def wait_for(self, name: str, state: str) -> ProcessStatus:
        wait_until(lambda: self.process(name).state == state, f"{name} to be {state}")
        return self.process(name)

    def pid(self, name: str) -> int:
        pid = self.process(name).pid
        assert pid is not None
        return pid

    def journal(self) -> list[str]:
        return (self.directory / "journal").read_text().splitlines()

    def kinds(self, name: str) -> list[str]:
        return [event.kind for event in self.events if event.process == name]

    def join(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive(), "the supervisor hangs"

    def end(self) -> None:
        if self._thread.is_alive():
            self.supervisor.ask_stop()
            self.supervisor.ask_stop()
            self.join()


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Any]:
    begun: list[Run] = []

    def start(scripts: dict[str, str], **settings: Any) -> Run:
        begun.append(Run(tmp_path, scripts, **settings))
        return begun[-1]

    yield start
    for run in begun:
        run.end()


class TestRun:
    def test_lanes_stop_before_capture_and_all_in_order(self, runs: Any) -> None:
        run = runs({"capture": OBEDIENT, "lake": OBEDIENT})
        run.wait_for("capture", "leading")
        run.wait_for("lake", "running")
        run.supervisor.ask_stop()
        run.join()
        assert run.in_order
        assert sorted(run.journal()[:2]) == ["capture starts", "lake starts"]
        assert run.journal()[2:] == ["lake stops", "capture stops"]
        assert run.process("capture").restarts == 0

    def test_a_process_that_dies_is_started_again(self, runs: Any) -> None:
        run = runs({"capture": OBEDIENT, "lake": OBEDIENT})
        run.wait_for("capture", "leading")
        lake = run.wait_for("lake", "running")
        os.kill(lake.pid, signal.SIGKILL)
        wait_until(lambda: run.process("lake").restarts == 1, "the lake process to be started again")
        again = run.wait_for("lake", "running")
        assert again.pid != lake.pid
        assert [event.fields["how"] for event in run.events if event.kind == "died"] == ["ended by signal 9"]
        assert run.process("capture").restarts == 0

    def test_what_a_dead_process_started_is_gone_before_its_successor_starts(self, runs: Any) -> None:
        leaves_one = """
import subprocess, sys, time
from penstock.channel import Channel
channel = Channel()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
channel.note(str(child.pid))
channel.state("running")
channel.stop_asked.wait()
"""
        run = runs({"capture": OBEDIENT, "lake": leaves_one})
        lake = run.wait_for("lake", "running")
        left = next(int(event.message) for event in run.events if event.kind == "note")
        assert psutil.pid_exists(left)
        os.kill(lake.pid, signal.SIGKILL)
        wait_until(lambda: run.process("lake").restarts == 1, "the lake process to be started again")
        wait_until(lambda: not _runs(left), "the process it had started to be gone")

    def test_a_process_that_keeps_failing_is_parked_and_says_why_until_somebody_asks(self, runs: Any) -> None:
        run = runs({"capture": OBEDIENT, "lake": FAILING}, restarts_max=1)
        run.wait_for("capture", "leading")
        parked = run.wait_for("lake", "parked")
        assert (parked.reason, parked.pid, parked.restarts) == ("The slot is gone.", None, 1)
        assert parked.next_try is None
        assert parked.error == {"code": "source", "message": "The slot is gone."}
        assert run.process("capture").state == "leading", "the others go on"
        assert _sample(run, metrics.PARKED, process="lake") == 1
        run.supervisor.retry()
        wait_until(lambda: run.process("lake").restarts >= 2, "another try")
        run.wait_for("lake", "parked")
        run.supervisor.ask_stop()
        run.join()
        assert run.in_order

    def test_a_parked_process_is_tried_again_until_it_lives_and_counts_as_parked_meanwhile(
        self, runs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What it died of, a disk or a catalog, is mended by somebody who does not know of us."""
        (tmp_path / "broken").touch()
        run = runs({"capture": OBEDIENT, "lake": MENDABLE}, restarts_max=1, parked_retry_s=0.05)
        wait_until(lambda: "parked" in run.kinds("lake"), "lake to be parked")
        shown: set[float | None] = set()

        def has_restarted(times: int) -> bool:
            shown.add(_sample(run, metrics.PARKED, process="lake"))
            return (_sample(run, metrics.RESTARTS, process="lake") or 0) >= times

        wait_until(lambda: has_restarted(4), "further tries")
        parked = next(event for event in run.events if event.kind == "parked")
        assert parked.fields["next_try"][:19] >= parked.at[:19]
        assert parked.fields["next_try"] in parked.message
        one_try = ["started", "failed", "parked"]
        assert run.kinds("lake")[:9] == ["started", "failed", "died", *one_try, *one_try]
        (tmp_path / "broken").unlink()
        run.wait_for("lake", "running")
        assert shown | {_sample(run, metrics.PARKED, process="lake")} == {1.0}, "it is on trial"
        monkeypatch.setattr("penstock.supervisor.restarts.LIVED_S", 0.0)
        assert _sample(run, metrics.PARKED, process="lake") == 0, "it has lived"
        assert run.process("lake").next_try is None

    @pytest.mark.parametrize("code", ["config", "position_gone"])
    def test_a_parked_process_that_time_does_not_mend_waits_for_somebody(self, runs: Any, code: str) -> None:
        failing = FAILING.replace('"source"', f'"{code}"')
        run = runs({"capture": OBEDIENT, "lake": failing}, restarts_max=0, parked_retry_s=0.0)
        assert run.wait_for("lake", "parked").next_try is None
        run.supervisor.retry()
        wait_until(lambda: run.kinds("lake").count("parked") == 2, "another try when somebody asks")
        assert run.process("lake").restarts == 1

    def test_a_process_that_was_told_something_wrong_is_parked_at_once(self, runs: Any) -> None:
        run = runs({"capture": OBEDIENT, "lake": FAILING.replace('"source"', '"config"')}, restarts_max=5)
        parked = run.wait_for("lake", "parked")
        assert (parked.reason, parked.restarts) == ("The slot is gone.", 0)
        run.supervisor.retry()
        wait_until(lambda: run.process("lake").restarts == 1, "another try when somebody asks")
        run.wait_for("lake", "parked")

    def test_a_capture_that_ended_for_want_of_log_leaves_the_slot_unhealthy(self, runs: Any) -> None:
        """Its own samples went with it: whoever watches, and the alert, have only the supervisor's word."""
        without_log = FAILING.replace('"source"', '"position_gone"')
        run = runs({"capture": without_log, "lake": OBEDIENT}, restarts_max=0)
        assert run.wait_for("capture", "parked").error["code"] == "position_gone"
        assert _sample(run, metrics.SLOT_HEALTHY) == 0
        assert run.supervisor.snapshot().source.slot_healthy is False

    def test_a_capture_that_ended_otherwise_says_nothing_of_the_slot(self, runs: Any) -> None:
        run = runs({"capture": FAILING, "lake": OBEDIENT}, restarts_max=0)
        run.wait_for("capture", "parked")
        assert _sample(run, metrics.SLOT_HEALTHY) is None
        assert run.supervisor.snapshot().source.slot_healthy is None

    def test_news_that_nobody_has_looked_at_does_not_pile_up(self, runs: Any) -> None:
        run = runs({"capture": OBEDIENT})
        run.wait_for("capture", "leading")
        holding, held = threading.Event(), threading.Event()

        def hold(*_: Any, **__: Any) -> None:
            held.set()
            holding.wait()

        keep, run.supervisor._keep = run.supervisor._keep, hold
        wait_until(held.is_set, "the main thread to stand still")
        try:
            for number in range(10_000):
                run.supervisor._heard(Event("note", "capture", str(number)))
            assert run.supervisor._inbox.qsize() <= 2
        finally:
            run.supervisor._keep = keep
            holding.set()
        run.supervisor.ask_stop()
        run.join()
        assert run.in_order

    def test_a_second_request_to_stop_kills_at_once(self, runs: Any) -> None:
        run = runs({"capture": OBEDIENT, "lake": STUBBORN}, stop_timeout_s=3600)
        pids = [run.wait_for("lake", "running").pid, run.wait_for("capture", "leading").pid]
        run.supervisor.ask_stop()
        wait_until(lambda: run.supervisor.snapshot().role == "stopping", "the stop to begin")
        run.supervisor.ask_stop()
        run.join()
        assert run.in_order is False
        assert not any(map(_runs, pids))
        assert "capture stops" not in run.journal()

    def test_what_does_not_end_in_time_is_killed_and_capture_still_stops_in_order(
        self, runs: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("penstock.supervisor.supervisor._CAPTURE_PART", 0.95)
        monkeypatch.setattr("penstock.supervisor.supervisor._CAPTURE_S_MAX", 57.0)
        run = runs({"capture": OBEDIENT, "lake": STUBBORN}, stop_timeout_s=60)
        run.wait_for("lake", "running")
        run.wait_for("capture", "leading")
        run.supervisor.ask_stop()
        run.join()
        assert run.in_order is False
        assert run.journal()[-1] == "capture stops"

    def test_a_stopped_process_is_killed_too(self, runs: Any) -> None:
        run = runs({"capture": OBEDIENT}, stop_timeout_s=1)
        pid = run.wait_for("capture", "leading").pid
        os.kill(pid, signal.SIGSTOP)
        run.supervisor.ask_stop()
        run.join()
        assert not _runs(pid)

    def test_a_process_that_waits_to_be_started_again_does_not_hold_up_the_end(self, runs: Any) -> None:
        run = runs({"capture": FAILING, "lake": OBEDIENT})
        run.wait_for("capture", "restarting")
        run.wait_for("lake", "running")
        run.supervisor.ask_stop()
        run.join()
        assert run.in_order
        assert run.journal() == ["lake starts", "lake stops"]

    def test_samples_are_kept_while_their_process_lives_and_unknown_ones_are_counted(
        self, runs: Any, tmp_path: Path
    ) -> None:
        run = runs({"capture": HOLDABLE})
        run.wait_for("capture", "leading")
        wait_until(lambda: _sample(run, metrics.ROWS_CAPTURED) == 7, "the samples of capture")
        assert run.supervisor.dropped_samples == 1
        assert _sample(run, metrics.LEADING) == 1
        assert _sample(run, metrics.UP, process="capture") == 1
        assert (_sample(run, metrics.MEMORY, process="capture") or 0) > 1 << 20
        (tmp_path / "held").touch()
        os.kill(run.pid("capture"), signal.SIGKILL)
        wait_until(lambda: run.process("capture").restarts == 1, "capture to be started again")
        assert _sample(run, metrics.ROWS_CAPTURED) is None
        assert _sample(run, metrics.LEADING) == 0

    def test_odd_words_do_not_keep_the_next_ones_from_being_heard(self, runs: Any) -> None:
        run = runs({"capture": ODD})
        run.wait_for("capture", "leading")
        run.supervisor.ask_stop()
        run.join()
        assert run.in_order
        assert run.journal() == ["capture starts", "capture stops"]

    def test_log_lines_carry_the_name_of_their_process(self, runs: Any) -> None:
        run = runs({"capture": OBEDIENT})
        wait_until(lambda: ("capture", "said by a library") in run.logged, "the line")

    def test_the_instance_that_leads_can_be_found_and_asked(self, runs: Any, tmp_path: Path) -> None:
        run = runs({"capture": HOLDABLE})
        run.wait_for("capture", "leading")
        wait_until(lambda: read_running(tmp_path / "state") is not None, "run.json")
        running = read_running(tmp_path / "state")
        assert running is not None
        assert running.capture == {"address": "grpc+unix:///nowhere"}
        with urllib.request.urlopen(f"http://{running.http}/status", timeout=120) as answer:
            assert json.load(answer)["role"] == "leading"
        assert "secret" not in (tmp_path / "state" / "run.json").read_text()
        run.supervisor.ask_stop()
        run.join()
        assert not (tmp_path / "state" / "run.json").exists()

    def test_the_instance_can_be_asked_while_its_source_is_away_until_it_stands_by(
        self, runs: Any, tmp_path: Path
    ) -> None:
        def is_asked(role: str) -> bool:
            found = running_status(tmp_path / "state")
            return found is not None and found["role"] == role

        def feel(mood: str) -> None:
            (tmp_path / "mood").write_text(mood)
            run.wait_for("capture", mood)

        (tmp_path / "mood").write_text("reconnecting")
        RunFile(tmp_path / "state", Running(os.getpid(), socket.gethostname(), "", {}, "then")).keep(
            leading=True
        )
        run = runs({"capture": MOODY})
        wait_until(lambda: read_running(tmp_path / "state") is None, "what an earlier life left to be gone")
        run.wait_for("capture", "reconnecting")
        feel("leading")
        wait_until(lambda: is_asked("leading"), "run.json")
        feel("reconnecting")
        _rounds(run)
        assert is_asked("reconnecting")
        os.kill(run.pid("capture"), signal.SIGKILL)
        wait_until(lambda: run.process("capture").restarts == 1, "capture to be started again")
        _rounds(run)
        assert read_running(tmp_path / "state") is not None
        feel("standby")
        wait_until(lambda: read_running(tmp_path / "state") is None, "run.json to be gone")
        feel("reconnecting")
        _rounds(run)
        assert read_running(tmp_path / "state") is None, "another one leads, or nobody does"
        feel("leading")
        wait_until(lambda: is_asked("leading"), "run.json to be back")
        elsewhere = Running(1, "elsewhere", "", {}, "now")
        feel("reconnecting")
        RunFile(tmp_path / "state", elsewhere).keep(leading=True)
        _rounds(run)
        assert read_running(tmp_path / "state") == elsewhere


def _rounds(run: Run) -> None:
    """Let it look at everything twice."""
    for _ in range(2):
        seen = run.supervisor._seen_at
        wait_until(lambda: run.supervisor._seen_at > seen, "a round")  # noqa: B023


class TestRunFile:
    OURS = Running(os.getpid(), "here", "127.0.0.1:1", {"address": "grpc+unix:///a"}, "then")

    def test_it_is_mended_while_we_lead_and_left_alone_when_another_does(self, tmp_path: Path) -> None:
        other = Running(os.getpid(), "elsewhere", "127.0.0.1:2", {"address": "grpc+unix:///b"}, "now")
        ours, theirs = RunFile(tmp_path, self.OURS), RunFile(tmp_path, other)
        ours.keep(leading=True)
        theirs.keep(leading=True)
        assert read_running(tmp_path) == other
        ours.keep(leading=False)
        assert read_running(tmp_path) == other
        ours.keep(leading=True)
        assert read_running(tmp_path) == self.OURS

    def test_a_file_that_a_crash_left_names_no_instance(self, tmp_path: Path) -> None:
        ended = subprocess.Popen(["true"])
        ended.wait()
        RunFile(tmp_path, Running(ended.pid, os.uname().nodename, "", {}, "")).keep(leading=True)
        assert read_running(tmp_path) is None

    @pytest.mark.parametrize(
        "content", ["", "[]", "{}", '{"format_version": 9}', '{"format_version": 1, "x": 1}']
    )
    def test_a_file_that_is_no_such_file_names_no_instance(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "run.json").write_text(content)
        assert read_running(tmp_path) is None

    def test_what_an_earlier_life_of_ours_left_goes_also_when_we_do_not_lead(self, tmp_path: Path) -> None:
        RunFile(tmp_path, self.OURS).keep(leading=True)
        RunFile(tmp_path, replace(self.OURS, http="127.0.0.1:2", since="later")).keep(leading=False)
        assert not (tmp_path / "run.json").exists()


class TestRestarts:
    def test_delays_double_up_to_a_limit_and_begin_anew_after_a_long_life(self) -> None:
        restarts = Restarts(100)
        delays = [restarts.died(number, lived_s=1) for number in range(8)]
        assert delays == [0.5, 1, 2, 4, 8, 16, DELAY_S_MAX, DELAY_S_MAX]
        assert restarts.died(9, lived_s=LIVED_S) == FIRST_DELAY_S

    @given(
        st.integers(1, 6),
        st.lists(st.tuples(st.floats(0, 300), st.floats(0, 300)), max_size=40),
    )
    def test_it_parks_exactly_when_deaths_in_the_window_exceed_the_limit(
        self, restarts_max: int, lives: list[tuple[float, float]]
    ) -> None:
        restarts, now, deaths = Restarts(restarts_max), 0.0, list[float]()
        for wait_s, lived_s in lives:
            now += wait_s + lived_s
            deaths.append(now)
            recent = [death for death in deaths if death > now - WINDOW_S]
            assert (restarts.died(now, lived_s) is None) == (len(recent) > restarts_max)

    def test_what_was_before_somebody_looked_does_not_count(self) -> None:
        restarts = Restarts(1)
        assert [restarts.died(0, 1), restarts.died(1, 1)] == [FIRST_DELAY_S, None]
        restarts.forgive()
        assert restarts.died(2, 1) == FIRST_DELAY_S

    def test_one_that_is_tried_once_more_is_parked_again_unless_it_lives(self) -> None:
        restarts = Restarts(1)
        assert [restarts.died(0, 1), restarts.died(1, 1)] == [FIRST_DELAY_S, None]
        for at_s in (10 * WINDOW_S, 20 * WINDOW_S):
            restarts.try_once()
            assert restarts.is_on_trial(LIVED_S - 1)
            assert restarts.died(at_s, LIVED_S - 1) is None
        restarts.try_once()
        assert not restarts.is_on_trial(LIVED_S)
        assert restarts.died(20 * WINDOW_S + 1, LIVED_S) == FIRST_DELAY_S, "it begins anew"
        assert restarts.died(20 * WINDOW_S + 2, 1) is None


class TestWhatIsSaid:
    @given(
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
            ),
            max_leaves=10,
        )
    )
    def test_no_word_of_a_process_breaks_those_who_read(self, said: Any) -> None:
        samples = Samples()
        samples.say("capture", said)
        assert samples.all() == []

    def test_the_newest_word_of_each_process_is_kept(self) -> None:
        samples = Samples()
        samples.say("capture", [["penstock_log_bytes", {}, 1]])
        samples.say("capture", [["penstock_log_bytes", {}, 2], ["penstock_log_bytes", {"odd": "x"}, 3]])
        samples.say("lake", [["penstock_freshness_seconds", {"stream": "a.b"}, 0.5]])
        assert samples.all() == [
            ("penstock_log_bytes", {}, 2.0),
            ("penstock_freshness_seconds", {"stream": "a.b"}, 0.5),
        ]
        assert samples.dropped == 1

    def test_numbers_that_nobody_says_any_more_do_not_hold(self) -> None:
        now = 0.0
        samples = Samples(clock=lambda: now)
        samples.say("capture", [["penstock_log_bytes", {}, 1]])
        now = HOLDS_S - 1
        assert len(samples.all()) == 1
        now = HOLDS_S
        assert samples.all() == []

    def test_of_a_flood_of_lines_the_rest_is_left_out_and_counted(self) -> None:
        now = 0.0
        flood = Flood(lines_max=2, clock=lambda: now)
        assert [flood.let_through(str(number)) for number in range(5)] == [["0"], ["1"], [], [], []]
        now = 11.0
        assert flood.let_through("6") == ["3 lines were left out here.", "6"]
        now = 22.0
        assert flood.let_through("7") == ["7"]


#: `penstock run` with other programs: its signals, its exit codes.
COMMAND = """
import json, sys
from pathlib import Path
from penstock.cli import run
from penstock.cli.main import main
from penstock.cli.outlet import Outlet
from penstock.supervisor import programs
from penstock.supervisor.process import Program

scripts, journal = json.loads(sys.argv[1]), sys.argv[2]
programs.programs_of = lambda *_: [
    Program(name, (sys.executable, "-c", script), {"name": name, "journal": journal})
    for name, script in scripts.items()
]
main(["run", *sys.argv[3:]])
"""
PIPELINE = """
source: {type: postgres, url: "postgresql://u:hidden@localhost/none"}
destination: {type: parquet, path: ./lake}
state: ./state
streams: [public.orders]
run: {listen: "127.0.0.1:0", restarts_max: 1}
"""


class Command:
    """`penstock run` in a process of its own."""

    def __init__(self, directory: Path, scripts: dict[str, str], pipeline: str = PIPELINE) -> None:
        (directory / "penstock.yaml").write_text(pipeline)
        self._out, self._err = directory / "out", directory / "err"
        with open(self._out, "w") as out, open(self._err, "w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-c", COMMAND, json.dumps(scripts), str(directory / "journal"), "--json"],
                cwd=directory,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def events(self) -> list[dict[str, Any]]:
        whole = self._out.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines() if line.startswith('{"at"')]

    def wait_for(self, process: str, event: str, **fields: Any) -> dict[str, Any]:
        wanted = {"process": process, "event": event, **fields}

        def found() -> list[dict[str, Any]]:
            assert self.process.poll() is None, self._err.read_text()
            return [each for each in self.events() if wanted.items() <= each.items()]

        wait_until(lambda: bool(found()), f"{wanted} among the events")
        return found()[-1]

    def pids(self) -> list[int]:
        return [each["pid"] for each in self.events() if each["event"] == "started"]

    def logged(self) -> str:
        return self._err.read_text()


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Any]:
    begun: list[Command] = []

    def start(scripts: dict[str, str], pipeline: str = PIPELINE) -> Command:
        begun.append(Command(tmp_path, scripts, pipeline))
        return begun[-1]

    yield start
    for each in begun:
        each.process.kill()
        each.process.wait()
        wait_until(lambda each=each: not any(map(_runs, each.pids())), "its processes to end")  # type: ignore[misc]


class TestCommand:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_a_signal_stops_in_order_with_exit_code_0(self, command: Any, number: int) -> None:
        running = command({"capture": OBEDIENT, "lake": OBEDIENT})
        running.wait_for("capture", "state", state="leading")
        running.wait_for("lake", "state", state="running")
        running.process.send_signal(number)
        assert running.process.wait(60) == 0
        assert not any(map(_runs, running.pids()))
        stopped = [each["process"] for each in running.events() if each["event"] == "stopped"]
        assert stopped == ["lake", "capture"]

    def test_a_lane_that_the_file_has_no_more_is_named_with_what_to_do(
        self, command: Any, tmp_path: Path
    ) -> None:
        registry = LaneRegistry(tmp_path / "state" / LANES_FILE)
        for lane in ("lake", "kafka"):
            registry.join(lane)
        running = command({"capture": OBEDIENT, "lake": OBEDIENT})
        said = running.wait_for("supervisor", "note")
        assert "The lane kafka is not in the pipeline file" in said["message"]
        assert "`penstock lane drop kafka --yes`" in said["message"]
        assert said["message"] in planning.status(Config.load(tmp_path / "penstock.yaml")).notes

    def test_a_second_signal_stops_at_once_and_says_so(self, command: Any) -> None:
        running = command({"capture": OBEDIENT, "lake": STUBBORN})
        running.wait_for("lake", "state", state="running")
        running.process.send_signal(signal.SIGTERM)
        running.wait_for("supervisor", "stopping")
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(60) == 130
        assert not any(map(_runs, running.pids()))

    def test_an_address_that_is_taken_is_an_error_before_anything_is_started(
        self, command: Any, tmp_path: Path
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            listen = f"127.0.0.1:{taken.getsockname()[1]}"
            running = command({"capture": OBEDIENT}, PIPELINE.replace("127.0.0.1:0", listen))
            assert running.process.wait(60) == 2
        [line] = (tmp_path / "out").read_text().splitlines()
        assert json.loads(line)["error"]["code"] == "config"
        assert not (tmp_path / "journal").exists()

    def test_nothing_runs_on_when_the_supervisor_is_killed(self, command: Any) -> None:
        running = command({"capture": OBEDIENT, "lake": STUBBORN})
        running.wait_for("capture", "state", state="leading")
        running.wait_for("lake", "state", state="running")
        running.process.kill()
        running.process.wait()
        wait_until(lambda: not any(map(_runs, running.pids())), "the processes to end")

    def test_sighup_starts_a_parked_process_again_and_harms_nobody_else(self, command: Any) -> None:
        running = command({"capture": OBEDIENT, "lake": FAILING})
        running.wait_for("lake", "parked")
        starts = len(running.pids())
        running.process.send_signal(signal.SIGHUP)
        wait_until(lambda: len(running.pids()) > starts, "the parked process to be started again")
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(60) == 0
        assert [each["event"] for each in running.events() if each["process"] == "capture"].count(
            "started"
        ) == 1

    def test_logs_are_lines_of_json_with_the_process_and_no_secret_shows(self, command: Any) -> None:
        running = command({"capture": OBEDIENT})
        running.wait_for("capture", "state", state="leading")
        wait_until(lambda: "said by a library" in running.logged(), "the line of the library")
        line = json.loads(next(each for each in running.logged().splitlines() if "library" in each))
        assert (line["process"], line["event"]) == ("capture", "said by a library")
        assert "hidden" not in running.logged() + json.dumps(running.events())

    @pytest.mark.parametrize(("options", "stalled"), [((), "stderr"), (("--json",), "stdout")])
    def test_somebody_who_does_not_read_holds_up_nothing(
        self, tmp_path: Path, options: tuple[str, ...], stalled: str
    ) -> None:
        (tmp_path / "penstock.yaml").write_text(PIPELINE)
        journal, scripts = tmp_path / "journal", {"capture": TALKATIVE, "lake": TALKATIVE}
        with _full_pipe() as full:
            process = subprocess.Popen(
                [sys.executable, "-c", COMMAND, json.dumps(scripts), str(journal), *options],
                cwd=tmp_path,
                start_new_session=True,
                stdout=full if stalled == "stdout" else subprocess.DEVNULL,
                stderr=full if stalled == "stderr" else subprocess.DEVNULL,
            )
            try:
                wait_until(lambda: _has_said_all(journal), "both processes to go on")
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 0
            finally:
                process.kill()
                process.wait()
        assert journal.read_text().splitlines()[-2:] == ["lake stops", "capture stops"]


TAKE_TERMINAL = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"


class Terminal:
    """`penstock run` on a terminal of its own, as the leader of its session."""

    def __init__(self, directory: Path, script: str = OBEDIENT) -> None:
        (directory / "penstock.yaml").write_text(PIPELINE)
        self.journal = directory / "journal"
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
        scripts = json.dumps({"capture": script, "lake": script})
        self.process = subprocess.Popen(
            [sys.executable, "-c", TAKE_TERMINAL + COMMAND, scripts, str(self.journal)],
            cwd=directory,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm"},
        )
        os.close(theirs)
        self._shown = b""

    def shown(self) -> str:
        while select.select([self._ours], [], [], 0)[0]:
            try:
                self._shown += os.read(self._ours, 65536)
            except OSError:  # nobody writes any more
                break
        return self._shown.decode(errors="replace")

    def written(self) -> list[str]:
        self.shown()  # or whoever writes there would wait
        return self.journal.read_text().splitlines() if self.journal.exists() else []

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def close(self) -> None:
        os.close(self._ours)

    def wait_until_it_ended(self, *, is_open: bool) -> int | None:
        def ended() -> bool:
            if is_open:
                self.shown()
            return self.process.poll() is not None

        wait_until(ended, "the run to end")
        return self.process.poll()


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    made = Terminal(tmp_path)
    yield made
    made.process.kill()
    made.process.wait()


class TestTerminal:
    def test_the_state_is_shown_and_ctrl_c_stops_in_order(self, terminal: Terminal) -> None:
        for word in ("leading", "memory", "lake: running", "restarts"):
            wait_until(lambda word=word: word in terminal.shown(), word)  # type: ignore[misc]
        terminal.type(b"\x03")
        assert terminal.wait_until_it_ended(is_open=True) == 0
        assert terminal.written()[2:] == ["lake stops", "capture stops"]
        terminal.close()

    def test_a_terminal_that_goes_away_stops_the_run_in_order(self, terminal: Terminal) -> None:
        wait_until(lambda: len(terminal.written()) == 2, "both processes")
        terminal.close()
        terminal.wait_until_it_ended(is_open=False)
        assert terminal.journal.read_text().splitlines()[2:] == ["lake stops", "capture stops"]

    def test_a_terminal_that_is_held_holds_up_nothing(self, tmp_path: Path) -> None:
        terminal = Terminal(tmp_path, TALKATIVE)
        try:
            wait_until(lambda: _has_said_all(terminal.journal), "both processes to go on")
            terminal.process.send_signal(signal.SIGTERM)
            assert terminal.wait_until_it_ended(is_open=False) == 0
        finally:
            terminal.process.kill()
            terminal.process.wait()
            terminal.close()
        assert terminal.journal.read_text().splitlines()[-2:] == ["lake stops", "capture stops"]


class TestOutlet:
    def test_what_finds_no_room_is_left_out_and_counted_where_it_was(self) -> None:
        written: list[str] = []
        reads = threading.Event()

        def write(line: str) -> None:
            reads.wait()
            written.append(line)

        outlet = Outlet(write, lambda count: f"{count} left out", lines_max=2)
        for line in "abcd":
            outlet.put(line)
        outlet.start()
        reads.set()
        wait_until(lambda: written == ["a", "b"], "what had room")
        outlet.put("e")
        outlet.end()
        assert written == ["a", "b", "2 left out", "e"]

    def test_a_writer_that_is_blocked_does_not_hold_up_the_end_and_one_that_fails_goes_on(self) -> None:
        blocked = Outlet[str](lambda _: threading.Event().wait(), str, lines_max=1)
        blocked.start()
        for line in "abc":
            blocked.put(line)
        blocked.end(within_s=0.1)
        written: list[str] = []
        failing = Outlet[str](lambda line: written.append("ab"[int(line)]), str)
        failing.start()
        for line in ("0", "no number", "1"):
            failing.put(line)
        failing.end()
        assert written == ["a", "b"]


def test_metrics_do_not_wait_for_words_that_nobody_reads() -> None:
    code = """
import os
from penstock.channel import Channel
channel = Channel("{}")
channel._lock.acquire()
channel.metrics([])
os._exit(7)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        assert process.wait(120) == 7
    finally:
        process.kill()
        process.communicate()


class TestLaneCommand:
    @pytest.fixture
    def lane(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> Any:
        """The command, in a directory with two lanes of which nothing runs; gives exit code and answer."""
        (tmp_path / "penstock.yaml").write_text(PIPELINE)
        registry = LaneRegistry(tmp_path / "state" / LANES_FILE)
        for name in ("lake", "gone"):
            registry.join(name)
        registry.flushed("lake", Lsn.parse("0/2A"))
        registry.save()
        monkeypatch.chdir(tmp_path)
        before = signal.getsignal(signal.SIGTERM)

        def call(*arguments: str) -> tuple[int, Any]:
            with pytest.raises(SystemExit) as caught:
                main(["lane", *arguments, "--json"])
            return int(caught.value.code or 0), json.loads(capsys.readouterr().out)

        yield call
        signal.signal(signal.SIGTERM, before)

    def test_lanes_are_listed_and_given_up_when_nothing_runs(self, lane: Any) -> None:
        _, answer = lane("list")
        found = [(each["lane"], each["position"], each["configured"]) for each in answer["lanes"]]
        assert found == [("gone", None, False), ("lake", "0/2A", True)]
        assert lane("drop", "gone", "--yes") == (0, {"dropped": "gone"})
        assert [each["lane"] for each in lane("list")[1]["lanes"]] == ["lake"]

    def test_a_leader_that_only_its_own_host_can_ask_is_named(self, lane: Any, tmp_path: Path) -> None:
        leader = Running(1, "elsewhere", "10.0.0.1:9780", {"address": "grpc+unix:///nowhere"}, "now")
        RunFile(tmp_path / "state", leader).keep(leading=True)
        for arguments in (("list",), ("drop", "gone", "--yes")):
            code, answer = lane(*arguments)
            assert (code, answer["error"]["code"]) == (3, "capture_away")
            assert "elsewhere" in answer["error"]["remedy"]

    def test_while_capture_does_not_answer_lanes_are_listed_as_they_were_and_none_is_given_up(
        self, lane: Any, tmp_path: Path
    ) -> None:
        leader = Running(
            os.getpid(), socket.gethostname(), "", {"address": f"grpc+unix://{tmp_path}/none"}, "now"
        )
        RunFile(tmp_path / "state", leader).keep(leading=True)
        _, answer = lane("list")
        assert [(each["lane"], each["position"]) for each in answer["lanes"]] == [
            ("gone", None),
            ("lake", "0/2A"),
        ]
        code, answer = lane("drop", "gone", "--yes")
        assert (code, answer["error"]["code"]) == (3, "capture_away")
        assert len(lane("list")[1]["lanes"]) == 2

    def test_a_configured_lane_that_was_given_up_is_listed_as_such(self, lane: Any, tmp_path: Path) -> None:
        (tmp_path / "penstock.yaml").write_text(PIPELINE + "lanes: {file: {path: ./out}}\n")
        LaneRegistry(tmp_path / "state" / LANES_FILE).join("file")
        assert lane("drop", "file", "--yes")[0] == 0
        found = {each["lane"]: each["dropped"] for each in lane("list")[1]["lanes"]}
        assert found == {"file": True, "gone": False, "lake": False}

    def test_the_lake_is_not_given_up(self, lane: Any) -> None:
        code, answer = lane("drop", "lake", "--yes")
        assert code == 2
        assert "acknowledge_log" in answer["error"]["remedy"]
        assert "penstock teardown" in answer["error"]["remedy"]
        assert not any(each["dropped"] for each in lane("list")[1]["lanes"])

    def test_the_last_lane_is_not_given_up(self, lane: Any, tmp_path: Path) -> None:
        LaneRegistry(tmp_path / "state" / LANES_FILE).drop("lake", is_configured=True)
        code, answer = lane("drop", "gone", "--yes")
        assert code == 2
        assert "penstock teardown" in answer["error"]["remedy"]
        assert {each["lane"]: each["dropped"] for each in lane("list")[1]["lanes"]}["gone"] is False

    def test_a_lane_is_given_up_on_purpose_only(self, lane: Any) -> None:
        assert lane("drop", "gone")[0] == 2
        assert lane("drop", "unknown", "--yes")[0] == 2
        assert len(lane("list")[1]["lanes"]) == 2


def test_the_supervisor_and_its_command_import_no_spark_and_no_arrow() -> None:
    code = (
        "import sys, penstock.cli.main, penstock.cli.run_output, penstock.supervisor.programs,"
        " penstock.supervisor.supervisor; print([m for m in ('pyspark', 'pyarrow', 'numba', 'pandas')"
        " if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def _sample(run: Run, metric: metrics.Metric, **labels: str) -> float | None:
    found = {name: value for name, given, value in run.supervisor.samples() if given == labels}
    return found.get(metric.name)


@contextmanager
def _full_pipe() -> Iterator[int]:
    """The end of a pipe that takes nothing more, for nobody reads the other one."""
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    with suppress(BlockingIOError):
        while True:
            os.write(theirs, b"x")
    os.set_blocking(theirs, True)
    try:
        yield theirs
    finally:
        os.close(theirs)
        os.close(ours)


def _has_said_all(journal: Path) -> bool:
    return journal.exists() and journal.read_text().count("has said all") == 2


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
