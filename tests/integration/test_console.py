"""The console in a real Chromium: every screen and action on a pipeline that runs, and on one in trouble.

By Debian's `chromium`, or another one that PENSTOCK_CHROMIUM names. With PENSTOCK_SCREENSHOTS=directory
the pictures of the guide are taken, in light and dark, at the width of a phone and of a wall.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.config import Config
from penstock.console.reading import Reading
from penstock.console.serving import Console, link_of_running
from penstock.core.stream import StreamId
from penstock.core.verify_report import ColumnDifference, Difference, VerifiedStream, VerifyReport
from penstock.ledger.lanes import LANES_FILE, LaneRegistry
from penstock.sources.postgres.embedded import EmbeddedPostgres
from penstock.streams.dead_letters import Dead, DeadLetters, dead_letters_path
from penstock.streams.events import CREATE
from penstock.verify import reports
from tests.conftest import wait_until
from tests.idle_pipeline import idle_pipeline
from tests.node import NodeProcess, chromium
from tests.pipelines import PipelineUnderTest
from tests.ports import free_port
from tests.publishing import events, term
from tests.running import Instance, instances
from tests.verifiable import data_files, plant_in

pytestmark = [pytest.mark.integration, pytest.mark.slow]

_DRIVER = Path(__file__).resolve().parents[1] / "browser" / "console.mjs"
_SHOP = """
CREATE TABLE customers (id bigint PRIMARY KEY, name text NOT NULL, city text);
CREATE TABLE orders (
    id bigint PRIMARY KEY, customer bigint, total numeric, status text, placed timestamptz DEFAULT now()
);
CREATE TABLE payments (id bigint PRIMARY KEY, amount numeric, paid boolean);
CREATE TABLE visits (id bigserial PRIMARY KEY, page text, at timestamptz DEFAULT now());
INSERT INTO customers
    SELECT n, 'customer ' || n, (ARRAY['Bern', 'Oslo', 'Lima'])[1 + n % 3] FROM generate_series(1, 2000) n;
INSERT INTO orders SELECT n, 1 + n % 2000, n % 90, 'placed' FROM generate_series(1, 20000) n;
INSERT INTO payments SELECT n, n % 500, n % 2 = 0 FROM generate_series(1, 5000) n;
INSERT INTO visits (page) SELECT '/p/' || n FROM generate_series(1, 3000) n;
"""
_STREAMS = [
    "public.customers",
    {"table": "public.orders", "types": {"total": "decimal(6,2)"}},
    "public.payments",
    {"table": "public.visits", "write": "append"},
]


class Browser:
    """A page of it; a method for each thing that people do."""

    def __init__(self, process: NodeProcess) -> None:
        self._process = process
        self.too_wide: list[str] = []

    def __getattr__(self, what: str) -> Any:
        return lambda **arguments: self._process.ask(what, **arguments)

    def see(self, text: str, within: str = "main") -> None:
        try:
            self.wait(selector=f"{within}:has-text({json.dumps(text)})")
        except AssertionError as error:
            raise AssertionError(f"not seen: {text}\n{self.text(selector='main')}") from error

    def press_button(self, name: str, within: str = "main") -> None:
        self.click(selector=f"{within} button:text-is({json.dumps(name)})")

    def confirm(self, action: str, **fields: str) -> str:
        """Do what the dialog asks about; what was said then."""
        self.wait(selector="dialog[open]")
        for name, text in fields.items():
            self.fill(selector=f"dialog [name={name}]", text=text)
        number = self.evaluate(script="(window.penstock.told ?? 0) + 1")
        self.click(selector=f'dialog [data-do="{action}"]')
        self.gone(selector="dialog[open]")
        said: str = self.text(selector=f'.toasts [data-number="{number}"]')
        return said

    def picture(self, name: str) -> None:
        """Of the guide, if they are asked for; whatever it is, the page is not wider than its window."""
        script = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        if self.evaluate(script=script):
            self.too_wide.append(name)
        self.evaluate(script="window.penstock.hush()")
        if directory := os.environ.get("PENSTOCK_SCREENSHOTS"):
            self.screenshot(path=str(Path(directory).absolute() / f"console-{name}.png"))


@contextmanager
def browser() -> Iterator[Browser]:
    with NodeProcess(_DRIVER, chromium()) as process:
        yield Browser(process)


@contextmanager
def writing(url: str) -> Iterator[threading.Event]:
    """People use the shop, also when its database goes away for a while."""
    stop = threading.Event()

    def work() -> None:
        number = 100_000
        while not stop.is_set():
            try:
                with psycopg.connect(url, autocommit=True) as connection:
                    while not stop.wait(0.05):
                        number += 1
                        with connection.transaction():
                            connection.execute("INSERT INTO visits (page) VALUES ('/now')")
                            connection.execute(
                                "INSERT INTO orders VALUES (%s, %s, 12.5, 'placed')", (number, number % 2000)
                            )
                            connection.execute(
                                "UPDATE orders SET status = 'paid' WHERE id = %s", (number - 5,)
                            )
                            connection.execute(
                                "UPDATE payments SET paid = NOT paid WHERE id = %s", (number % 5000,)
                            )
            except psycopg.Error:
                stop.wait(0.2)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield stop
    finally:
        stop.set()
        thread.join()


def test_every_screen_and_action_on_a_running_pipeline_and_in_trouble(tmp_path: Path) -> None:
    with EmbeddedPostgres() as server:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute(_SHOP.encode())
        shapes_port = free_port()
        settings = {
            "lanes": {
                "lake": {"every": "1s"},
                "file": {"path": "./events.ndjson", "snapshot": "never"},
                "shapes": {"port": shapes_port, "insecure": True},
            },
            "log": {"seal_every": "1s"},
            "checkpoint": {"interval": "1s"},
            "run": {"restarts_max": 50},
            "console": {"enabled": True, "listen": f"127.0.0.1:{free_port()}"},
        }
        pipeline = PipelineUnderTest(tmp_path / "shop", server.url(), _STREAMS, settings)
        _dead_letters(pipeline)
        LaneRegistry(pipeline.state / LANES_FILE).join("archive")  # of a pipeline file that was
        instance = Instance(pipeline, "one", {"console": settings["console"]})
        with instances(instance), writing(server.url()), browser() as page:
            instance.start()
            config = Config.load(pipeline.file)
            instance.wait_until(lambda: link_of_running(config) is not None, "the console")
            link = link_of_running(config)
            assert link is not None
            page.open(url=link)
            try:
                _walk(page, instance, server, pipeline, shapes_port)
            except AssertionError:
                print(instance.said(), instance.status())
                raise
            asked = {url.split("/")[2] for url in page.asked() if url.startswith("http")}
            assert asked == {link.split("/")[2]}, "nothing comes from elsewhere"
            assert not page.too_wide, "pages that are wider than their window"
            assert instance.stop() == 0


def test_a_load_is_shown_with_how_far_it_is_and_how_long_it_will_take(tmp_path: Path) -> None:
    """It is slowed down rather than held at a failpoint: what stands still has no time to its end."""
    with EmbeddedPostgres() as server:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("CREATE TABLE pages (id bigint PRIMARY KEY, body text)")
            # Of the server's answers only so many fit on the way to a reader that waits.
            connection.execute(
                "INSERT INTO pages SELECT n, repeat('x', 8000) FROM generate_series(1, 40000) n"
            )
            connection.execute("ANALYZE pages")
        settings = {
            "load": {"rows_per_second": 400},
            "console": {"enabled": True, "listen": f"127.0.0.1:{free_port()}"},
        }
        pipeline = PipelineUnderTest(tmp_path / "shop", server.url(), ["public.pages"], settings)
        instance = Instance(pipeline, "one", {"console": settings["console"]})
        with instances(instance), browser() as page:
            instance.start()
            config = Config.load(pipeline.file)
            instance.wait_until(lambda: link_of_running(config) is not None, "the console")
            page.open(url=link_of_running(config))
            page.wait(selector="nav.screens")
            page.go(screen="streams")
            _moving_bar(page, 'tr[data-name="public.pages"]')
            page.go(screen="streams/public.pages")
            _moving_bar(page, ".about")
            page.see("of about 40,000 rows", ".about .notice")
            page.see("rows/s", ".about .notice")


def _moving_bar(page: Browser, within: str) -> None:
    page.wait(selector=f'{within} .loading small:text-matches("^[0-9]+ %, about .+ left$")')
    page.wait(selector=f"{within} .loading [role=progressbar]")
    bar = f"document.querySelector({json.dumps(f'{within} .loading [role=progressbar]')})"

    def part() -> int:
        return int(page.evaluate(script=f"Number({bar}.getAttribute('aria-valuenow'))"))

    before = part()
    wait_until(lambda: before < part() < 100, "the bar to go on")


def _dead_letters(pipeline: PipelineUnderTest) -> None:
    """Events that the lane's target refused, as the lane writes them down."""
    rows = [(0, CREATE, b"[1]", b'{"secret": "one"}'), (1, CREATE, b"[2]", b'{"secret": "two"}')]
    why = [("too_large", "The event is larger than the target takes.", 1)] * 2
    with DeadLetters(dead_letters_path(pipeline.state, "file"), "file") as letters:
        letters.begin(term(1), None)
        found = events(StreamId("public", "visits"), 7, rows)
        letters.write([Dead(found, why, np.ones(2, np.int64), np.arange(2))])


def _walk(
    page: Browser, instance: Instance, server: EmbeddedPostgres, pipeline: PipelineUnderTest, shapes_port: int
) -> None:
    page.wait(selector="nav.screens")
    assert "token" not in page.evaluate(script="location.href"), (
        "the link's token does not stay in the address"
    )
    page.wait(selector=".squares a >> nth=3")
    instance.wait_until(lambda: _states(instance) == {"running", "leading"}, "all processes")
    _drop_lane(page)
    page.see("Nothing holds the slot back", ".holds")
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("UPDATE orders SET total = 123456.78 WHERE id IN (1, 2)")
        connection.execute("UPDATE customers SET city = 'Nice' WHERE id = 42")
        connection.execute("ALTER TABLE customers ADD COLUMN vip boolean DEFAULT false")
        connection.execute("UPDATE customers SET city = 'Rome', vip = true WHERE id = 42")
        connection.execute("UPDATE customers SET city = 'Kyiv' WHERE id = 42")
    url = f"http://127.0.0.1:{shapes_port}/v1/shape?table=customers&offset=-1&where=city%3D%27Oslo%27"
    with urllib.request.urlopen(url, timeout=120) as answer:
        assert answer.status == 200
    _streams(page)
    _lanes(page)
    _stalled_lane(page, pipeline.directory / "events.ndjson")
    _letters(page)
    _shapes(page)
    _state_and_log(page)
    _plots_and_audit(page)
    _verify(page, pipeline)
    _sizes(page)
    _dead_postgres(page, server)
    _dead_console(page, instance)


def _states(instance: Instance) -> set[str]:
    return {each["state"] for each in instance.status().get("processes", [])}


def _streams(page: Browser) -> None:
    page.go(screen="streams")
    page.wait(selector='tr[data-name="public.orders"] .state.good')
    page.click(selector='tr[data-name="public.payments"] button:text-is("Pause")')
    assert page.confirm("stream.pause", reason="migration 42") == "public.payments is paused."
    page.wait(selector='tr[data-name="public.payments"]:has-text("migration 42")')
    page.press(key="1")
    page.see("The lake lane waits for public.payments, paused since", ".holds")
    page.picture("flow-paused")
    page.go(screen="streams/public.payments")
    page.see("Paused since")
    page.press_button("Resume")
    assert page.confirm("stream.resume") == "public.payments goes on."
    page.wait(selector=".about .state.good")
    page.see("Versions of its schema")
    page.go(screen="streams/public.customers")
    page.see("vip came")
    page.picture("stream")
    page.press_button("Resync")
    assert "loaded again" in page.confirm("stream.resync")
    page.go(screen="streams")
    page.fill(selector="input[type=search]", text="nothing like it")
    page.see("None like that")
    page.fill(selector="input[type=search]", text="")
    page.wait(selector='tr[data-name="public.customers"] .state.good')
    page.wait(selector='tr[data-name="public.orders"] a:text-is("2")')
    page.picture("streams")


def _lanes(page: Browser) -> None:
    page.go(screen="lanes")
    page.wait(selector="#lane-file .state.good")
    page.wait(selector='#lane-file dd code:has-text("/")')
    page.press_button("Pause", "#lane-file")
    assert page.confirm("lane.pause", reason="broker upgrade") == "The file lane stands still."
    page.wait(selector='#lane-file:has-text("broker upgrade")')
    page.wait(selector="#lane-file .state.held")
    page.press(key="1")
    page.see("The file lane is paused since", ".holds")
    page.press(key="3")
    page.press_button("Rewind", "#lane-file")
    assert "no position" in page.confirm("lane.rewind", to="not a position")
    begins = page.evaluate(script="fetch('/api/log/steps').then(a => a.json()).then(a => a.begins)")
    page.press_button("Rewind", "#lane-file")
    assert "sends everything after" in page.confirm("lane.rewind", to=begins)
    page.picture("lanes")
    page.press_button("Resume", "#lane-file")
    assert page.confirm("lane.resume") == "The file lane goes on."
    page.wait(selector="#lane-file .state.good")


def _stalled_lane(page: Browser, path: Path) -> None:
    """A target that takes nothing, while the lane's process is well: somebody else holds the file's lock."""
    with open(path, "rb") as file:
        while True:  # the lane has it while it writes
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
        page.press(key="1")
        page.see("The file lane waits: since", ".holds")
        page.wait(selector="#node-lane-file .state.bad")
        page.see("the target does not take what is sent", "#node-lane-file")
        page.picture("flow-stalled-lane")
        page.press(key="3")
        page.see("the target does not take what is sent", "#lane-file")
    page.wait(selector="#lane-file .state.good")
    page.press(key="1")
    page.see("Nothing holds the slot back", ".holds")


def _drop_lane(page: Browser) -> None:
    """A lane that is no longer configured holds the slot until somebody gives it up."""
    page.see("The lane archive is not in the pipeline file and holds the slot until it is dropped", ".holds")
    page.go(screen="lanes")
    page.wait(selector='#lane-archive:has-text("left behind")')
    page.press_button("Drop", "#lane-archive")
    assert page.confirm("lane.drop") == "The lane archive is given up."
    page.gone(selector="#lane-archive")
    page.press(key="1")


def _letters(page: Browser) -> None:
    page.go(screen="letters")
    page.click(selector='main a:text-is("public.orders")')
    page.see("2 dead letters")
    assert "123456.78" not in page.text(selector="main"), "values are hidden"
    page.press_button("Show values")
    page.see("123456.78")
    page.picture("letters")
    page.press_button("Hide values")
    page.go(screen="letters/file/public.visits")
    page.see("too_large")
    assert "secret" not in page.text(selector="main")
    page.press_button("Show values")
    page.see("secret")
    page.press_button("Hide values")
    page.click(selector='tr:has-text("7_0") button:text-is("Drop")')
    assert "dropped" in page.confirm("letters.drop")
    page.gone(selector='tr:has-text("7_0")')
    page.click(selector='tr:has-text("7_1") button:text-is("Replay")')
    assert "sent" in page.confirm("letters.replay")
    page.see("There are no dead letters of this stream")


def _shapes(page: Browser) -> None:
    page.go(screen="shapes")
    page.see("city")
    page.see("public.customers")
    assert "Oslo" not in page.text(selector="main"), "what conditions compare with is hidden"
    page.press_button("Show values")
    page.see("Oslo")
    page.picture("shapes")
    page.press_button("Hide values")
    page.press_button("Drop")
    assert "is dropped" in page.confirm("shape.drop")
    page.see("None yet")


def _state_and_log(page: Browser) -> None:
    page.go(screen="state")
    page.see("If it were started now")
    page.see("streams follow the log from")
    page.press_button("Show the file")
    page.wait(selector="pre")
    page.press_button("Show values")
    page.press_button("Hide values")
    page.press_button("Hide the file")
    page.click(selector='main a:text-is("What changed")')
    page.wait(selector=".differences li")
    page.press_button("Show values")
    page.press_button("Hide values")
    page.picture("state")
    page.go(screen="log")
    page.wait(selector="main tbody tr >> nth=2")
    page.choose(selector="main select", value="public.customers")
    page.fill(selector="input[name=key]", text="42")
    page.press_button("Show its changes")
    page.see("Kyiv")
    page.see("Rome")
    page.picture("log")
    page.click(selector='main tbody tr:has-text("updates") a')
    page.see("Transactions")
    page.see("updates in" if page.count(selector='main:has-text("updates in")') else "update in")


def _plots_and_audit(page: Browser) -> None:
    page.go(screen="plots")
    page.attached(selector=".chart path.line[d^=M]")
    for name in ("15 min", "24 h", "1 h"):
        page.press_button(name)
    page.attached(selector=".chart path.line[d^=M]")
    page.go(screen="audit")
    for text in ("stream.pause", "lane.rewind", "letters.drop", "shape.drop", "show values: letters.lake"):
        page.see(text)
    for text in ("lane.drop", "show values: shapes", "show values: state", "show values: state.diff"):
        page.see(text)
    assert "123456.78" not in page.text(selector="main"), "values are in no audit log"
    page.picture("audit")


def _verify(page: Browser, pipeline: PipelineUnderTest) -> None:
    page.go(screen="verify")
    page.see("Nothing was compared yet")
    _verify_in_truth(page, pipeline)
    # By hand, what no comparison here comes to.
    row = Difference("different", {"id": "4711-key"}, (ColumnDifference("total"),))
    streams = (
        VerifiedStream("public.customers", "equal", position="0/1A2B3C40", source_rows=2000, table_rows=2000),
        VerifiedStream(
            "public.orders",
            "different",
            position="0/1A2B3C40",
            source_rows=5000,
            table_rows=4999,
            missing=1,
            different=1,
            columns={"total": 1},
            differences=(Difference("missing", {"id": "8"}), row),
        ),
    )
    reports.save(pipeline.state, VerifyReport(streams, datetime.now(UTC).isoformat(timespec="seconds"), 1.2))
    page.go(screen="flow")
    page.go(screen="verify")
    page.see("1 of 2 streams differed")
    page.picture("verify")
    page.click(selector='main tr[data-name="public.orders"] a >> nth=1')
    page.see("100 % of the rows")
    assert "4711-key" not in page.text(selector="main"), "keys are values, and hidden"
    page.press_button("Show rows")
    page.see("id=4711-key")
    page.press_button("Hide rows")
    page.gone(selector='main:has-text("4711-key")')
    shape = VerifiedStream("public.orders 17-4", "equal", lane="shapes", source_rows=5, table_rows=5)
    began_at = datetime.now(UTC).isoformat(timespec="seconds")
    reports.save(pipeline.state, VerifyReport((shape,), began_at, 0.2, of="shapes"))
    page.go(screen="flow")
    page.go(screen="verify")
    page.see("a shape, as its clients hold it")
    # There is no stream of that name.
    assert page.text(selector='main a[href="#/shapes"]') == "public.orders 17-4"


def _verify_in_truth(page: Browser, pipeline: PipelineUnderTest) -> None:
    """A row that somebody took out of a table, found by the command while the pipeline runs."""
    files = data_files(pipeline, "public.customers")
    path = max(files, key=lambda each: pq.read_metadata(each).num_rows)
    lost = pq.ParquetFile(path).read().column("id")[7]
    plant_in(path, lambda table: pa.concat_tables([table.slice(0, 7), table.slice(8)]))
    ended = pipeline.sync_apart(command=("verify", "public.customers", "public.payments"))
    assert ended.status == 10, ended
    page.go(screen="flow")
    page.go(screen="verify")
    page.see("1 of 2 streams differed")
    differing = 'main tr[data-name="public.customers"]'
    page.see("different", differing)
    page.see("equal", 'main tr[data-name="public.payments"]')
    page.click(selector=f"{differing} a >> nth=1")
    page.see("100 % of the rows")
    page.press_button("Show rows", differing)
    page.see(f"id={lost}")
    page.see("missing")
    page.press_button("Hide rows")
    page.gone(selector=f'main:has-text("id={lost}")')
    page.go(screen="verify")


def _sizes(page: Browser) -> None:
    """Every screen fits a phone and a wall, in light and dark, and can be reached by keys."""
    screens = page.evaluate(script="window.penstock.screens")
    for width, height, scheme, name in ((360, 780, "light", "phone"), (2560, 1440, "dark", "wall")):
        page.size(width=width, height=height)
        page.scheme(scheme=scheme)
        for number, screen in enumerate(screens, 1):
            page.press(key=str(number % 10))
            page.wait(selector="main[aria-label] >> visible=true")
            assert page.evaluate(script="location.hash") == f"#/{screen}"
            page.picture(f"{name}-{screen}")
    page.size(width=1440, height=900)
    page.press(key="1")
    page.picture("flow-dark")
    page.scheme(scheme="light")
    page.picture("flow")
    page.press(key="8")
    page.press_button("15 min")
    page.attached(selector=".chart path.line[d^=M]")
    page.picture("plots")


def _dead_postgres(page: Browser, server: EmbeddedPostgres) -> None:
    page.press(key="1")
    server.kill()
    page.see("Capture does not read", ".holds")
    page.wait(selector="#node-source.bad")
    page.picture("flow-dead-postgres")
    server.start()
    page.wait(selector="#node-source.good")
    page.see("Nothing holds the slot back", ".holds")


def _dead_console(page: Browser, instance: Instance) -> None:
    """The console's process is killed: the page says so, and goes on by itself when it is back."""
    page.press(key="2")
    pid = next(each["pid"] for each in instance.status()["processes"] if each["name"] == "console")
    os.kill(pid, 9)
    page.wait(selector=".pulse.off")
    page.wait(selector=".pulse:not(.off)")
    page.gone(selector=".stale")


def _status(names: list[str], begun: float) -> dict[str, Any]:
    """What an instance with many streams says."""
    passed, now = time.time() - begun, "2026-11-16T12:00:00+00:00"
    process = {"reason": "", "since": now, "pid": 1, "restarts": 0, "memory_bytes": 10**8, "error": None}
    lane = {"freshness_s": None, "events": None, "paused": False, "loading": 0, "gaps": 0, "configured": True}
    none = {"load_rows": None, "load_rows_estimated": None}
    source: dict[str, Any] = {"slot_healthy": True, "retained_wal_bytes": 1, "safe_wal_bytes": None}
    source |= {
        "wal_pressure": False,
        "capture_lag_bytes": 0,
        "acknowledged": "0/1",
        "epoch": "0/1",
        "checkpoint_age_s": 0.0,
    }
    table = {"freshness_s": 3.0, "lag_s": 1.0, "dead_letters": 0, "differences": 0, **none}
    table |= {"rows": 5, "files": 1}
    return {
        "host": "h",
        "pid": 1,
        "since": now,
        "role": "leading",
        "live": True,
        "health": {"live": True, "ready": True, "role": "leading", "reasons": []},
        "processes": [
            {"name": "capture", "state": "leading", **process},
            {"name": "lake", "state": "running", **process},
        ],
        "lanes": [{"lane": "lake", "known": True, "lag_bytes": 10**6, "lag_seconds": 1.0, **lane}],
        "streams": [{"stream": name, "rows_applied": int(passed * 100), **table} for name in names],
        "source": source,
        "capture": dict.fromkeys(("rows", "bytes", "transactions", "log_bytes", "unsealed_bytes"), 1),
    }


def test_two_hundred_streams_are_painted_within_a_second(tmp_path: Path) -> None:
    names = [f"public.table_{number:03d}" for number in range(200)]
    file = idle_pipeline(tmp_path, names, console={"listen": "127.0.0.1:0"})
    begun = time.time()
    console = Console(Config.load(file), file, lambda: _status(names, begun))
    try:
        with browser() as page:
            found = []
            for url in (console.link, *[console.url + "/"] * 3):
                page.open(url=url)
                page.wait(selector=".squares a >> nth=199")
                found.append(
                    page.evaluate(
                        script="performance.getEntriesByName('first-contentful-paint')[0].startTime"
                    )
                )
                found.append(page.evaluate(script="window.penstock.paintedAt"))
            page.gone(selector=".stale")
            print("first paint and first numbers, ms:", [round(each) for each in found])
            assert max(found[::2]) < 1000, "the first opening is one of them"
            assert max(found[1::2]) < 1000, "all streams are on the page"
            page.go(screen="streams")
            page.wait(selector="tbody tr >> nth=99")
            assert page.count(selector="tbody tr") == 100
    finally:
        console.stop()


def test_a_console_whose_address_is_taken_says_so_and_serves_when_it_is_free(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        file = idle_pipeline(tmp_path, console={"listen": listen})
        spec = {"config": str(file), "http": "127.0.0.1:1"}
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock.console"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(spec) + "\n")
        process.stdin.flush()
        said = json.loads(process.stdout.readline())
        assert (said["event"], said["state"]) == ("state", "waiting"), said
        assert listen in said["reason"]
    said = json.loads(process.stdout.readline())
    assert (said["event"], said["state"]) == ("state", "running"), "once it said that it waits"
    with urllib.request.urlopen(f"http://{listen}/", timeout=120) as answer:
        assert answer.status == 200
    process.stdin.write('{"request": "stop"}\n')
    process.stdin.flush()
    assert process.wait(120) == 0
    process.stdin.close()
    process.stdout.close()


def _asked(console: Console, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
    token = console.link.partition("#token=")[2]
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    content = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(
            urllib.request.Request(console.url + path, content, headers), timeout=120
        ) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_dead_letters_of_an_iceberg_table_are_shown_by_one_jvm_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # How long a JVM takes on a machine with other work is not what is tested.
    monkeypatch.setattr("penstock.console.http.ANSWER_S", 120.0)
    monkeypatch.setattr("penstock.console.screens.Reading", partial(Reading, within_s=110.0))
    with EmbeddedPostgres() as server:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("CREATE TABLE orders (id bigint PRIMARY KEY, total numeric)")
            connection.execute("INSERT INTO orders VALUES (1, 12.5), (2, 123456.78)")
        settings = {"destination": {"type": "iceberg", "warehouse": "./lake"}}
        streams = [{"table": "public.orders", "types": {"total": "decimal(6,2)"}}]
        pipeline = PipelineUnderTest(tmp_path / "shop", server.url(), streams, settings)
        pipeline.sync()
        config = Config.load(pipeline.file)
        listening = config.console.model_copy(update={"listen": "127.0.0.1:0"})
        config = config.model_copy(update={"console": listening})
        console = Console(config, pipeline.file, lambda: None)
        try:
            path = "/api/letters/lake?stream=public.orders"
            with ThreadPoolExecutor(4) as people:
                answers = list(people.map(lambda _: _asked(console, path), range(4)))
            assert sorted(status for status, _ in answers) == [200, 503, 503, 503], answers
            (found,) = (answer for status, answer in answers if status == 200)
            assert found["dead_letters"] == 1
            assert "123456.78" not in json.dumps(found), "values are hidden"
            asked = {"of": "letters.lake", "fields": {"stream": "public.orders"}}
            status, found = _asked(console, "/api/values", asked)
            assert status == 200, found
            assert found["shown"][0]["row"]["total"] == "123456.78"
        finally:
            console.stop()
