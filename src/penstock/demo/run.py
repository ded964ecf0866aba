"""The demo's course: make a shop, load it, follow it while people use it, compare, say what to try next."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.cli.progress import progress_listener
from penstock.cli.settings import Settings
from penstock.cli.tables import count, table
from penstock.config import Config
from penstock.console.serving import link_of_running
from penstock.core.errors import ConfigError, SourceError
from penstock.core.report import SyncReport
from penstock.demo.comparison import Comparison, compare
from penstock.demo.shop import APPEND_STREAM, UPSERT_STREAMS, Customers, make_shop
from penstock.pipeline import Pipeline
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.embedded import EmbeddedPostgres

_PIPELINE_FILE = """\
# Written by `penstock demo`. The database is its own and ends with it.
source: {{type: postgres, url: "{url}"}}
destination: {{type: parquet, path: ./lake}}
state: ./state
streams:
{streams}
# Any free port: the usual ones may be another pipeline's.
run: {{listen: "127.0.0.1:0"}}
console: {{listen: "127.0.0.1:0"}}
"""
_CONSOLE_S = 60.0
_LOOK_EVERY_S = 0.1


def run_demo(
    rows: int = 200_000,
    rounds: int = 3,
    keep: Path | None = None,
    json: bool = False,
    console: bool | None = None,
) -> int:
    """The exit code: 0 if both sides are equal in the end.

    `console`: whether to go on with a run that can be looked at, until Enter; by default on a terminal.
    """
    settings = Settings(json=json)
    with _directory(keep) as directory, EmbeddedPostgres(directory / "postgres") as server:
        demo = _Demo(settings, directory, server)
        loaded, followed = demo.load(rows), demo.follow(rounds)
        comparisons = demo.compare()
        equal = all(comparison.equal for comparison in comparisons)
        if json:
            settings.emit_json(_as_json(loaded, followed, comparisons, equal))
        else:
            demo.say_what_is_next(keep)
            if equal and (sys.stdin.isatty() if console is None else console):
                demo.show()
    return 0 if equal else 1


@dataclass(frozen=True, slots=True)
class _Demo:
    settings: Settings
    directory: Path
    server: EmbeddedPostgres

    @property
    def file(self) -> Path:
        return self.directory / "penstock.yaml"

    def load(self, rows: int) -> SyncReport:
        self._heading(f"A shop in Postgres {self._version()}, made for this demo")
        with connect(self.server.url()) as connection:
            made = make_shop(connection, rows)
        self._write_file()
        self.settings.note(f"{count(made)} rows of history in {len(UPSERT_STREAMS) + 1} tables.")
        self._heading("Loading it into Parquet tables (Spark starts first, which takes a few seconds)")
        with progress_listener(self.settings) as listener:
            report = Pipeline.from_yaml(self.file).sync(listener)
        loaded = sum(stream.rows_loaded for stream in report.streams)
        self.settings.note(f"{count(loaded)} rows in {report.seconds:.1f} s, with the start of Spark.")
        return report

    def follow(self, rounds: int) -> list[SyncReport]:
        """A few rounds while people use the shop, and one after they have left, to catch up."""
        self._heading("People use the shop; each sync brings the tables up to its start")
        reports = []
        with Customers(self.server.url()):
            for number in range(1, rounds + 1):
                reports.append(self._round(f"round {number} of {rounds}"))
        reports.append(self._round("the last changes"))
        return reports

    def compare(self) -> list[Comparison]:
        self._heading("Both sides, rows and a checksum over every value")
        pipeline = Pipeline.from_yaml(self.file)
        comparisons = []
        with connect(self.server.url()) as connection:
            for stream in (*UPSERT_STREAMS, APPEND_STREAM):
                comparisons.append(compare(connection, stream, _current_rows(pipeline, stream)))
        if not self.settings.json:
            cells = [
                (
                    each.stream,
                    count(each.source_rows),
                    count(each.table_rows),
                    each.source_checksum,
                    each.table_checksum,
                    "equal" if each.equal else "DIFFERENT",
                )
                for each in comparisons
            ]
            columns = ("table", "source rows", "table rows", "source checksum", "table checksum", "")
            self.settings.out.print(table(columns, cells, right=("source rows", "table rows")))
        return comparisons

    def say_what_is_next(self, keep: Path | None) -> None:
        if keep is None:
            lines = [
                "penstock demo --keep ./shop      the same, and leaves the tables for you to look at",
                "penstock init                    a pipeline file for a database of yours",
                "penstock check                   what that database still needs, and how to give it",
            ]
        else:
            command = f"penstock -c {shlex.quote(str(self.file))}"
            path = Pipeline.from_yaml(self.file).table("public.orders").path
            lines = [
                f"{command} status",
                f"{command} table path public.orders",
                f"{command} sync      while this demo waits",
                f"psql {shlex.quote(self.server.url())}      while this demo waits",
                f"""python -c "import pandas; print(pandas.read_parquet('{path}'))" """.rstrip(),
            ]
        self._heading("What to try next")
        for line in lines:
            self.settings.note(f"  {line}")

    def show(self) -> None:
        """The same shop, followed all the time while people use it, and its console: until Enter."""
        self._heading("The same shop, followed all the time: look at it")
        config = Config.load(self.file)
        command = [sys.executable, "-m", "penstock", "-c", str(self.file), "run"]
        with (
            open(self.directory / "run.log", "wb") as log,
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log) as run,
        ):
            try:
                with Customers(self.server.url(), pause_s=0.02, visit=1):
                    link = _console_link(config, run)
                    self.settings.out.print(f"\n  {link}\n", markup=False, highlight=False, soft_wrap=True)
                    self.settings.note("Shop, pipeline and console run until you press Enter.")
                    with suppress(KeyboardInterrupt):
                        sys.stdin.readline()
            finally:
                run.terminate()

    def _round(self, what: str) -> SyncReport:
        report = Pipeline.from_yaml(self.file).sync()
        changes = sum(stream.changes for stream in report.streams)
        self.settings.note(
            f"{what}: {count(changes)} changes in {report.seconds:.1f} s, up to {report.position}"
        )
        return report

    def _write_file(self) -> None:
        streams = [f"  - {stream}" for stream in UPSERT_STREAMS]
        streams.append(f"  - {{table: {APPEND_STREAM}, write: append}}")
        self.file.touch(mode=0o600)  # it holds the database's password
        self.file.write_text(_PIPELINE_FILE.format(url=self.server.url(), streams="\n".join(streams)))

    def _version(self) -> str:
        with connect(self.server.url()) as connection:
            return str(connection.info.server_version // 10_000)

    def _heading(self, text: str) -> None:
        self.settings.err.print(f"\n[bold]{text}[/bold]", highlight=False)


def _current_rows(pipeline: Pipeline, stream: str) -> pa.Table:
    """Of the append table: loaded and inserted rows, which is all it gets in this shop."""
    rows = pipeline.table(stream).to_arrow()
    return rows.filter(pc.is_in(rows["_op"], pa.array(["r", "i"]))) if stream == APPEND_STREAM else rows


def _as_json(
    loaded: SyncReport, followed: list[SyncReport], comparisons: list[Comparison], equal: bool
) -> dict[str, Any]:
    return {
        "load": loaded.to_json(),
        "rounds": [report.to_json() for report in followed],
        "comparison": [comparison.to_json() for comparison in comparisons],
        "equal": equal,
    }


def _console_link(config: Config, run: subprocess.Popen[bytes]) -> str:
    ends_at = time.monotonic() + _CONSOLE_S
    while (link := link_of_running(config)) is None:
        if run.poll() is not None or time.monotonic() > ends_at:
            raise SourceError("The run did not come up.", remedy="Try `penstock demo --no-console`.")
        time.sleep(_LOOK_EVERY_S)
    return link


@contextmanager
def _directory(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="penstock-demo-") as temporary:
            # As root, Postgres runs as another user, who must be able to enter.
            Path(temporary).chmod(0o755)
            yield Path(temporary)
        return
    if keep.exists() and any(keep.iterdir()):
        raise ConfigError(
            f"{keep} is not empty.",
            remedy="Name a directory that does not exist yet: penstock demo --keep DIR.",
        )
    keep.mkdir(parents=True, exist_ok=True)
    yield keep.resolve()
