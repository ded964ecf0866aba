"""What the command line promises: where output goes, how commands end, what is never written."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.progress import Progress

from penstock import __version__
from penstock.cli.failure import DIFFERENT, exit_codes
from penstock.cli.main import global_options_first, main
from penstock.cli.pipeline_file import without_password
from penstock.cli.progress import BarProgress, PlainProgress
from penstock.cli.run_view import run_view
from penstock.cli.tables import size
from penstock.config import Config, MongoSourceConfig, MysqlSourceConfig, PostgresSourceConfig
from penstock.config.unavailable import LATER_COMMANDS
from penstock.core.errors import ConfigError, PenstockError, SourceError
from penstock.core.report import (
    CompactedStream,
    CompactReport,
    PipelineStatus,
    PlannedStream,
    ProgressListener,
    StreamReport,
    StreamStatus,
    SyncReport,
    TableHealth,
)
from penstock.core.verify_report import Difference, VerifiedStream, VerifyReport
from penstock.sources.finding import Finding
from tests.idle_pipeline import idle_pipeline

REPORT = SyncReport(
    [StreamReport("public.orders", rows_loaded=1200, inserts=3, seconds=1.5)], "0/1A2B3C", 2.0
)
STATUS = PipelineStatus(
    "0/1A2B3C",
    None,
    None,
    4096,
    [StreamStatus("public.[bold]odd", "cdc", "upsert", "following", rows=7)],
    ["Hm."],
)
RUNNING: dict[str, Any] = {
    "host": "here",
    "pid": 42,
    "since": "2026-11-15T12:00:00+00:00",
    "role": "leading",
    "live": True,
    "health": {
        "live": True,
        "ready": False,
        "role": "leading",
        "reasons": ["lake is parked: No space left."],
    },
    "processes": [
        {
            "name": "lake",
            "state": "parked",
            "reason": "No space left.",
            "since": "2026-11-15T12:00:00+00:00",
            "pid": None,
            "restarts": 6,
            "memory_bytes": 0,
            "error": None,
        }
    ],
    "lanes": [{"lane": "lake", "known": False, "lag_bytes": 96 << 20, "lag_seconds": 90.0}],
    "streams": [
        {
            "stream": "public.[bold]late",
            "freshness_s": 2.5,
            "lag_s": None,
            "rows_applied": 12_000,
            "dead_letters": 0,
        }
    ],
    "source": {
        "slot_healthy": True,
        "retained_wal_bytes": 1 << 30,
        "safe_wal_bytes": None,
        "wal_pressure": True,
        "capture_lag_bytes": 0,
        "acknowledged": "0/1A2B3C",
        "epoch": "0/1A2B00",
        "checkpoint_age_s": 3.0,
    },
}
WORN = TableHealth(120, 2_000_000, 0.95, 40, 0.12, 0, 300, 6 * 86400)
COMPACTED = CompactedStream("public.[bold]odd", ("data files",), WORN, replace(WORN, data_files=1), 290, 3)


@dataclass
class StandIn:
    """Takes the place of `penstock.Pipeline`: gives what a test wants to see shown, or raises it."""

    raises: BaseException | None = None
    findings: list[Finding] = field(default_factory=list)
    watched: int = 0
    config: Any = field(
        default_factory=lambda: SimpleNamespace(
            source=SimpleNamespace(type="postgres", slot="s", publication="p")
        )
    )

    def check(self) -> list[Finding]:
        return self.findings

    def plan(self) -> list[PlannedStream]:
        return [PlannedStream("public.orders", "load", 1200, "no table yet")]

    def sync(self, listener: ProgressListener | None = None) -> SyncReport:
        assert listener is not None
        listener.stream_started("public.orders", "load", 1200)
        listener.progressed("public.orders", "load", 600, 10_000)
        if self.raises is not None:
            raise self.raises
        listener.stream_finished("public.orders", "load", 1200)
        return REPORT

    def status(self) -> PipelineStatus:
        return STATUS

    def running(self) -> dict[str, Any] | None:
        return None

    def compact(
        self, streams: Sequence[str], listener: ProgressListener, *, dry_run: bool = False
    ) -> CompactReport:
        listener.note("public.orders: merging 120 data files.")
        return CompactReport([replace(COMPACTED, after=None) if dry_run else COMPACTED], [], 1.0)

    def verify_lane(
        self, lane: str, streams: Sequence[str], listener: ProgressListener, **asked: Any
    ) -> VerifyReport:
        record = Difference("doubled", {"id": "7", "change": "26_4", "record": "t[0]@3"})
        sent = VerifiedStream(
            "public.orders", "different", lane=lane, compared_from=asked["start"], position="0/2A",
            source_rows=5, table_rows=6, doubled=1, notes=("9 are gone",), differences=(record,),
        )  # fmt: skip
        return VerifyReport((sent,), "2026-11-16T10:00:00+00:00", 1.0, of=lane)

    def table(self, stream: str) -> Any:
        return SimpleNamespace(path=Path("/lake") / stream)

    def teardown(self, *, force: bool = False) -> list[str]:
        return ["slot s", "publication p"]


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    result = StandIn()
    module = ModuleType("penstock.pipeline")
    module.Pipeline = SimpleNamespace(from_yaml=lambda _path: result)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "penstock.pipeline", module)
    return result


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Run a command in a directory of its own; gives exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    before = signal.getsignal(signal.SIGTERM)

    def invoke(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        captured = capsys.readouterr()
        return int(caught.value.code or 0), captured.out, captured.err

    yield invoke
    signal.signal(signal.SIGTERM, before)


class TestHelp:
    def test_version_is_printed(self, run: Run) -> None:
        assert run("--version") == (0, f"penstock {__version__}\n", "")

    def test_help_lists_every_exit_code(self, run: Run) -> None:
        code, out, _ = run("--help")
        assert code == 0
        for number in exit_codes():
            assert f" {number}  " in out

    def test_every_error_has_a_documented_exit_code(self) -> None:
        def kinds(kind: type[PenstockError]) -> Iterator[type[PenstockError]]:
            yield kind
            for child in kind.__subclasses__():
                yield from kinds(child)

        assert {kind.exit_code for kind in kinds(PenstockError)} <= set(exit_codes())

    @pytest.mark.parametrize(
        "command",
        ["init", "check", "discover", "sync", "status", "state", "table", "teardown", "demo"],
    )
    def test_every_command_has_help(self, run: Run, command: str) -> None:
        assert run(command, "--help")[0] == 0

    def test_help_needs_neither_spark_nor_a_driver(self) -> None:
        script = (
            "import sys; from penstock.cli.main import app; "
            "print([m for m in ('pyspark', 'pyarrow', 'psycopg', 'numba', 'pandas') if m in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]"

    def test_a_sync_loads_no_encoders_of_events(self) -> None:
        """Compiled code for stream lanes: loading it was a sixth of what a small sync takes."""
        script = (
            "import sys; import penstock.pipeline, penstock.cli.sync; "
            "print([m for m in sys.modules if m.startswith('penstock.streams.encoding')])"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]"

    def test_a_wrong_option_is_exit_code_2(self, run: Run) -> None:
        assert run("sync", "--fast")[0] == 2


class TestGlobalOptions:
    @pytest.mark.parametrize(
        ("given", "meant"),
        [
            (["sync", "--json"], ["--json", "sync"]),
            (["sync", "-c", "a.yaml", "--dry-run"], ["-c", "a.yaml", "sync", "--dry-run"]),
            (["table", "path", "--", "--json"], ["table", "path", "--", "--json"]),
            (["sync", "-c"], ["-c", "sync"]),
        ],
    )
    def test_they_may_follow_the_command(self, given: list[str], meant: list[str]) -> None:
        assert global_options_first(given) == meant


class TestVerify:
    def test_what_a_lane_has_sent_is_told_as_records_and_changes(self, run: Run, stand_in: StandIn) -> None:
        code, out, err = run("verify", "--lane", "kafka", "--from", "0/1A")
        assert code == DIFFERENT
        for words in ("changes", "records", "doubled", "out of order", "id=7, change=26_4, record=t[0]@3"):
            assert words in " ".join(out.split())
        assert "changes from 0/1A to 0/2A were compared" in err
        assert "9 are gone" in err
        code, out, _ = run("verify", "--lane", "kafka", "--json")
        assert json.loads(out)["of"] == "kafka"

    @pytest.mark.parametrize("options", [["--from", "0/1A"], ["--lane", "kafka", "--repair"]])
    def test_options_that_do_not_fit_are_refused(
        self, run: Run, stand_in: StandIn, options: list[str]
    ) -> None:
        code, _, err = run("verify", *options)
        assert code not in (0, DIFFERENT)
        assert options[-1] in err or options[0] in err

    @pytest.mark.parametrize("part", [["--at", "0/1A2B3C40"], ["--sample", "5%"]])
    def test_a_repair_of_a_part_or_of_an_earlier_version_is_refused(
        self, run: Run, tmp_path: Path, part: list[str]
    ) -> None:
        idle_pipeline(tmp_path)
        code, _, err = run("verify", "--repair", *part)
        assert code == ConfigError.exit_code
        assert part[0] in err


class TestSync:
    def test_json_is_the_only_thing_on_stdout(self, run: Run, stand_in: StandIn) -> None:
        code, out, err = run("sync", "--json")
        assert code == 0
        assert json.loads(out) == REPORT.to_json()
        assert "public.orders: loaded 1,200 rows" in err

    def test_people_see_counts_and_position(self, run: Run, stand_in: StandIn) -> None:
        _, out, _ = run("sync")
        assert "1,200" in out
        assert "Up to 0/1A2B3C" in out

    def test_a_dry_run_says_what_would_be_done(self, run: Run, stand_in: StandIn) -> None:
        _, out, err = run("sync", "--dry-run")
        assert "load" in out
        assert "no table yet" in out
        assert "Nothing was changed." in err
        assert json.loads(run("--json", "sync", "--dry-run")[1])["plan"][0]["rows_estimated"] == 1200

    def test_ctrl_c_says_that_the_same_command_goes_on(self, run: Run, stand_in: StandIn) -> None:
        stand_in.raises = KeyboardInterrupt()
        code, out, err = run("sync")
        assert (code, out) == (130, "")
        assert "the same command goes on from there" in err

    def test_sigterm_ends_like_ctrl_c(self, tmp_path: Path) -> None:
        script = textwrap.dedent("""
            import sys, signal, types
            class Pipeline:
                def sync(self, listener):
                    print("syncing", flush=True)
                    while True:
                        signal.pause()
            module = types.ModuleType("penstock.pipeline")
            module.Pipeline = types.SimpleNamespace(from_yaml=lambda path: Pipeline())
            sys.modules["penstock.pipeline"] = module
            from penstock.cli.main import main
            main(["sync"])
        """)
        with subprocess.Popen(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "syncing\n"
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=120)
        assert process.returncode == 130
        assert "the same command goes on" in err


class TestErrors:
    error = SourceError("The slot is gone.", remedy="Run `penstock check`.", stream="public.[red]orders")

    def test_an_error_says_what_to_which_stream_and_what_to_do(self, run: Run, stand_in: StandIn) -> None:
        stand_in.raises = self.error
        code, out, err = run("sync")
        assert (code, out) == (3, "")
        for said in ("The slot is gone.", "public.[red]orders", "What to do: Run `penstock check`."):
            assert said in err
        assert "Traceback" not in err

    def test_json_carries_the_error_on_stdout(self, run: Run, stand_in: StandIn) -> None:
        stand_in.raises = self.error
        code, out, _ = run("sync", "--json")
        assert code == 3
        assert json.loads(out)["error"] == self.error.to_json()

    def test_verbose_adds_the_traceback(self, run: Run, stand_in: StandIn) -> None:
        stand_in.raises = self.error
        assert "Traceback" in run("--verbose", "sync")[2]

    def test_an_unknown_error_shows_its_kind_and_none_of_its_words(self, run: Run, stand_in: StandIn) -> None:
        stand_in.raises = RuntimeError("row 7 has password hunter2")
        code, out, err = run("sync")
        assert (code, out) == (1, "")
        assert "RuntimeError" in err
        assert "hunter2" not in err
        assert "hunter2" not in run("--json", "sync")[1]

    def test_a_missing_pipeline_file_is_exit_code_2(self, run: Run) -> None:
        code, _, err = run("state", "show")
        assert code == 2
        assert "no pipeline file" in err


class TestOtherCommands:
    def test_check_ends_with_3_if_something_is_missing(self, run: Run, stand_in: StandIn) -> None:
        stand_in.findings = [
            Finding(name="wal_level", level="error", message="It is replica.", remedy="Set it.", stream=None),
            Finding(name="slots", level="ok", message="9 are free.", remedy="", stream=None),
        ]
        code, out, _ = run("check")
        assert code == 3
        assert "✗ It is replica." in out
        assert "What to do: Set it." in out
        code, out, _ = run("check", "--json")
        assert (code, json.loads(out)["ok"]) == (3, False)

    def test_check_ends_with_0_if_nothing_is_missing(self, run: Run, stand_in: StandIn) -> None:
        stand_in.findings = [
            Finding(name="a", level="warning", message="Few slots.", remedy="", stream="public.x")
        ]
        assert run("check")[0] == 0

    def test_status_shows_names_as_they_are(self, run: Run, stand_in: StandIn) -> None:
        _, out, err = run("status")
        assert "public.[bold]odd" in out
        assert "Hm." in err
        assert json.loads(run("status", "--json")[1]) == STATUS.to_json()

    def test_status_shows_the_health_of_tables_that_have_such_figures(
        self, run: Run, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert "small files" not in run("status")[1]
        shown = replace(STATUS, streams=[replace(STATUS.streams[0], health=WORN)])
        monkeypatch.setattr(stand_in, "status", lambda: shown)
        out = run("status")[1]
        for figure in ("95%", "12%", "6.0 d"):
            assert figure in out

    def test_status_shows_the_instance_that_runs(
        self, run: Run, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stand_in, "status", lambda: replace(STATUS, running=RUNNING))
        out = run("status")[1]
        for shown in (
            "leading",
            "lake",
            "No space left.",
            "96.0 MiB",
            "2.5 s",
            "1.0 GiB",
            "public.[bold]late",
        ):
            assert shown in out
        assert json.loads(run("status", "--json")[1])["running"] == RUNNING

    def test_watching_goes_on_until_it_is_stopped_with_or_without_an_instance(
        self, run: Run, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answers = iter([None, RUNNING, RUNNING])

        def sleep(_seconds: float) -> None:
            if stand_in.watched == 3:
                raise KeyboardInterrupt

        def running() -> dict[str, Any] | None:
            stand_in.watched += 1
            return next(answers)

        monkeypatch.setattr(time, "sleep", sleep)
        monkeypatch.setattr(stand_in, "running", running)
        code, out, _ = run("status", "--watch")
        assert (code, stand_in.watched) == (0, 3)
        assert "No space left." in out
        code, out, _ = run("status", "--watch", "--json")
        assert (code, json.loads(out)["error"]["code"]) == (2, "config")

    def test_of_many_streams_the_latest_are_shown(self) -> None:
        stream = RUNNING["streams"][0]
        many = [{**stream, "stream": f"public.t{number:03}", "lag_s": float(number)} for number in range(100)]
        console = Console(file=io.StringIO(), width=200)
        console.print(run_view({**RUNNING, "streams": many}, streams_max=10))
        shown = console.file.getvalue()  # type: ignore[attr-defined]
        assert "public.t099" in shown
        assert "public.t089" not in shown
        assert "90 streams less far behind" in shown

    def test_compact_shows_what_was_done_or_is_due(self, run: Run, stand_in: StandIn) -> None:
        code, out, err = run("compact", "public.orders")
        assert code == 0
        assert "120 → 1" in out
        assert "merging" in err
        code, out, err = run("compact", "--dry-run")
        assert "95%" in out
        assert "data files" in out
        assert "Nothing was changed." in err
        [shown] = json.loads(run("compact", "--json")[1])["streams"]
        assert shown["after"]["data_files"] == 1

    def test_table_path_prints_the_path_alone(self, run: Run, stand_in: StandIn) -> None:
        assert run("table", "path", "public.orders") == (0, "/lake/public.orders\n", "")

    def test_teardown_needs_to_be_asked_twice(self, run: Run, stand_in: StandIn) -> None:
        code, out, err = run("teardown")
        assert (code, out) == (2, "")
        assert "--yes" in err
        assert json.loads(run("teardown", "--yes", "--json")[1]) == {"dropped": ["slot s", "publication p"]}


class TestState:
    @pytest.fixture(autouse=True)
    def pipeline_file(self, run: Run) -> None:
        run("init", "--url", "postgresql://app@db/shop")

    def test_without_state_it_says_what_makes_it(self, run: Run) -> None:
        code, _, err = run("state", "show")
        assert code == 6
        assert "penstock sync" in err

    def test_show_check_and_restore(self, run: Run, tmp_path: Path) -> None:
        from penstock.ledger.state import StateDocument
        from penstock.ledger.store import StateStore

        store = StateStore(tmp_path / "state")
        store.save(StateDocument.new())
        code, out, _ = run("state", "show")
        assert (code, json.loads(out)["type"]) == (0, "STREAM")
        assert run("state", "check")[0] == 0
        store.path.write_text('{"type": "STR')
        assert run("state", "check")[0] == 6
        assert json.loads(run("state", "restore", "--json")[1]) == {"version": 2}
        assert run("state", "check")[0] == 0


class TestInit:
    def test_what_it_writes_can_be_read(self, run: Run, tmp_path: Path) -> None:
        code, out, _ = run(
            "init", "--url-env", "SHOP_URL", "--slot", "shop", "--path", "./tables: new",
            "--stream", "public.orders", "--stream", "public.Weird Name", "--stream", "*.x",
        )  # fmt: skip
        assert (code, out) == (0, "")
        config = Config.load(tmp_path / "penstock.yaml", {"SHOP_URL": "postgresql://app@db/shop"})
        assert isinstance(config.source, PostgresSourceConfig)
        assert config.source.slot == "shop"
        assert config.destination.path == tmp_path.resolve() / "tables: new"
        assert [stream.table for stream in config.streams] == ["public.orders", "public.Weird Name", "*.x"]

    def test_a_password_is_never_written(self, run: Run, tmp_path: Path) -> None:
        _, _, err = run("init", "--url", "postgresql://app:hunter2@db/shop?sslpassword=hunter2&user=a@b")
        text = (tmp_path / "penstock.yaml").read_text()
        assert "hunter2" not in text + err
        assert "PGPASSWORD" in err
        url = Config.load(tmp_path / "penstock.yaml", {"PGPASSWORD": "p@ss"}).source.url
        assert url.get_secret_value() == "postgresql://app:p%40ss@db/shop?sslpassword=p%40ss&user=a@b"

    def test_a_url_of_mysql_makes_a_pipeline_of_mysql(self, run: Run, tmp_path: Path) -> None:
        code, _, err = run("init", "--url", "mysql://app:hunter2@db:3306/shop?ssl_mode=required")
        assert code == 0
        assert "hunter2" not in (tmp_path / "penstock.yaml").read_text() + err
        config = Config.load(tmp_path / "penstock.yaml", {"MYSQL_PWD": "p@ss"})
        assert isinstance(config.source, MysqlSourceConfig)
        assert config.source.url.get_secret_value() == "mysql://app:p%40ss@db:3306/shop?ssl_mode=required"
        assert [stream.table for stream in config.streams] == ["shop.*"]

    @pytest.mark.parametrize(
        ("url", "streams"),
        [
            ("mongodb://app:{}@a:27017,b:27018/shop?replicaSet=rs0&authSource=admin", "shop.*"),
            ("mongodb+srv://app:{}@cluster0.example.net/?tlsCertificateKeyFilePassword={}", "*.*"),
        ],
    )
    def test_a_url_of_mongodb_makes_a_pipeline_of_mongodb(
        self, run: Run, tmp_path: Path, url: str, streams: str
    ) -> None:
        code, _, err = run("init", "--url", url.replace("{}", "hunter2"))
        assert code == 0, err
        assert "hunter2" not in (tmp_path / "penstock.yaml").read_text() + err
        config = Config.load(tmp_path / "penstock.yaml", {"MONGODB_PASSWORD": "p@ss"})
        assert isinstance(config.source, MongoSourceConfig)
        assert config.source.url.get_secret_value() == url.replace("{}", "p%40ss")
        assert [stream.table for stream in config.streams] == [streams]

    def test_a_token_in_a_url_is_not_written(self, run: Run, tmp_path: Path) -> None:
        properties = "authMechanismProperties=AWS_SESSION_TOKEN:hunter2"
        code, _, err = run("init", "--url", f"mongodb://db/shop?authMechanism=MONGODB-AWS&{properties}")
        assert (code, "hunter2" in err, (tmp_path / "penstock.yaml").exists()) == (2, False, False)

    def test_the_kind_of_database_can_be_said(self, run: Run, tmp_path: Path) -> None:
        assert run("init", "--url-env", "SHOP_URL", "--type", "mysql")[0] == 0
        config = Config.load(tmp_path / "penstock.yaml", {"SHOP_URL": "mariadb://app@db/shop"})
        assert (config.source.type, config.streams[0].table) == ("mysql", "*.*")
        for wrong in (["--slot", "s"], ["--url", "postgresql://app@db/shop"]):
            assert run("init", "--force", "--type", "mysql", *wrong)[0] == 2

    def test_what_is_not_there_for_a_source_is_refused(self, run: Run, tmp_path: Path) -> None:
        for kind, later in LATER_COMMANDS.items():
            run("init", "--force", "--url", f"{kind}://app@db/shop")
            for command in later:
                code, _, err = run(*command.split())
                said = f"not available yet for a source of type {kind}" in " ".join(err.split())
                assert (code, said) == (2, True), command

    @given(st.text(min_size=6))
    def test_no_password_survives_whatever_it_holds(self, password: str) -> None:
        secret = f"hunter2{password}hunter2"
        try:
            result = str(without_password(f"postgresql://app:{secret}@db/shop"))
        except ConfigError as error:
            result = str(error)
        assert "hunter2" not in result
        assert "PGPASSWORD" in result

    @pytest.mark.parametrize(
        ("url", "written"),
        [
            ("postgresql:///shop?password=hunter2", "postgresql:///shop?password=${PGPASSWORD}"),
            ("postgresql://app:hunter2${X}@db", "postgresql://app:${PGPASSWORD}@db"),
        ],
    )
    def test_only_the_password_is_replaced(self, url: str, written: str) -> None:
        assert without_password(url) == (written, "PGPASSWORD")

    @pytest.mark.parametrize(
        "url",
        [
            "postgresql://app@db:5432/shop",
            "postgresql://app:${SHOP_PASSWORD}@db/shop?sslmode=require",
            "postgresql://[::1]:5432/shop",
            "postgresql://app@[::1]/shop",
            "postgresql:///shop?host=/run/postgresql&user=a@b",
            "postgresql://${HOST}:${PORT}/shop",
            "${DATABASE_URL}",
        ],
    )
    def test_a_url_without_a_password_is_written_as_it_is(self, url: str) -> None:
        assert without_password(url) == (url, None)

    def test_a_file_that_is_there_stays(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "penstock.yaml").write_text("mine")
        code, _, err = run("init")
        assert code == 2
        assert "--force" in err
        assert (tmp_path / "penstock.yaml").read_text() == "mine"
        assert run("init", "--force")[0] == 0

    def test_a_wrong_answer_writes_nothing(self, run: Run, tmp_path: Path) -> None:
        code, _, err = run("init", "--slot", "Not A Slot")
        assert code == 2
        assert "source.slot" in err
        assert list(tmp_path.iterdir()) == []

    def test_on_a_terminal_it_asks(self, tmp_path: Path) -> None:
        parent, child = os.openpty()
        os.write(parent, b"${SHOP_URL}\n./tables\npublic.orders, public.events\n")
        with os.fdopen(child, "rb") as terminal:
            subprocess.run(
                [sys.executable, "-c", "from penstock.cli.main import main; main(['init'])"],
                stdin=terminal, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                cwd=tmp_path, check=True, timeout=120,
            )  # fmt: skip
        os.close(parent)
        config = Config.load(tmp_path / "penstock.yaml", {"SHOP_URL": "postgresql://app@db/shop"})
        assert [stream.table for stream in config.streams] == ["public.orders", "public.events"]
        assert config.destination.path == tmp_path / "tables"


class TestProgress:
    def test_plain_lines_come_at_intervals_with_rate_bytes_and_time_left(self) -> None:
        lines: list[str] = []
        now = 0.0
        plain = PlainProgress(lines.append, clock=lambda: now)
        plain.stream_started("public.orders", "load", 100_000)
        for second in range(1, 11):
            now = float(second)
            plain.progressed("public.orders", "load", 5_000 * second, 1024 * second)
        plain.stream_finished("public.orders", "load", 50_000)
        assert lines == [
            "public.orders: loading, 25,000 of about 100,000 rows, 5,000 rows/s, 5.0 KiB, about 15 s left",
            "public.orders: loading, 50,000 of about 100,000 rows, 5,000 rows/s, 10.0 KiB, about 10 s left",
            "public.orders: loaded 50,000 rows in 10.0 s, 5,000 rows/s",
        ]

    def test_a_bar_becomes_a_line_when_its_stream_is_done(self) -> None:
        output = io.StringIO()
        progress = Progress(console=Console(file=output, width=200), disable=True)
        bars = BarProgress(progress, clock=lambda: 0.0)
        bars.stream_started("public.[bold]odd", "load", 10)
        bars.progressed("public.[bold]odd", "load", 25, 4096)
        assert [(task.completed, task.total) for task in progress.tasks] == [(25, 25)]
        bars.stream_finished("public.[bold]odd", "load", 25)
        bars.note("A note [as it is].")
        assert progress.tasks == []
        assert output.getvalue() == "public.[bold]odd: loaded 25 rows in 0.0 s\nA note [as it is].\n"

    def test_a_bar_never_goes_back(self) -> None:
        progress = Progress(console=Console(file=io.StringIO()), disable=True)
        bars = BarProgress(progress, clock=lambda: 0.0)
        bars.stream_started("public.orders", "load", 100)
        for rows in (30, 10, 40, 20):
            bars.progressed("public.orders", "load", rows, rows * 10)
        assert [(task.completed, task.fields["bytes_total"]) for task in progress.tasks] == [(40, 400)]

    def test_a_word_after_the_end_of_a_phase_is_passed_over(self) -> None:
        progress = Progress(console=Console(file=io.StringIO()), disable=True)
        lines: list[str] = []
        for listener in (BarProgress(progress), PlainProgress(lines.append, clock=lambda: len(lines) * 60.0)):
            listener.stream_started("change log", "capture", None)
            listener.progressed("change log", "capture", 2, 100)
            listener.stream_finished("change log", "capture", 3)
            listener.progressed("change log", "capture", 3, 200)
        assert progress.tasks == []
        assert lines == ["change log: read 3 rows in 0.0 s"]

    def test_a_log_without_changes_is_no_news(self) -> None:
        output = io.StringIO()
        progress = Progress(console=Console(file=output), disable=True)
        lines: list[str] = []
        now = 0.0
        plain = PlainProgress(lines.append, clock=lambda: now)
        for listener in (BarProgress(progress), plain):
            listener.stream_started("change log", "capture", None)
            now += 60
            listener.progressed("change log", "capture", 0, 54)
            assert progress.tasks == []
            listener.stream_finished("change log", "capture", 0)
        assert (output.getvalue(), lines) == ("", [])

    @pytest.mark.parametrize(
        ("number", "shown"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 1024**4, "5.0 TiB")]
    )
    def test_sizes_are_readable(self, number: int, shown: str) -> None:
        assert size(number) == shown


class TestReadme:
    readme = Path(__file__).parents[2] / "README.md"

    def test_it_lists_the_exit_codes_the_commands_have(self) -> None:
        text = self.readme.read_text(encoding="utf-8")
        listed = re.findall(r"^\| (\d+) \| (.+) \|$", text, re.MULTILINE)
        assert listed == [(str(code), meaning) for code, meaning in exit_codes().items()]

    def test_its_pipeline_file_can_be_read(self, tmp_path: Path) -> None:
        example = self.readme.read_text(encoding="utf-8").partition("```yaml\n")[2].partition("```")[0]
        (tmp_path / "penstock.yaml").write_text(example, encoding="utf-8")
        config = Config.load(tmp_path / "penstock.yaml", {"PGPASSWORD": "x"})
        assert len(example.splitlines()) == 10
        assert [stream.write for stream in config.streams] == ["upsert", "append", "upsert"]
