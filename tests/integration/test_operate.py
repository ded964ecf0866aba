"""What somebody who watches `penstock run` is told, by a real one."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from penstock import metrics
from penstock.metrics import BY_NAME, METRICS
from tests.conftest import Database, wait_until
from tests.ports import free_port
from tests.running import Instance, flushed_position, instances, is_acknowledged
from tests.stream_lane import events_of
from tests.traps import MakePipeline

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: Only of a server that limits what a slot may keep (`max_slot_wal_keep_size`), of a target that has refused
#: something, and of Kinesis.
ONLY_OF_OTHERS = {
    metrics.LOAD_ROWS.name,  # while a table is loaded
    metrics.LOAD_ROWS_ESTIMATED.name,
    metrics.SAFE_WAL_BYTES.name,
    metrics.STREAM_DEAD_LETTERS.name,
    metrics.STREAM_LANE_READ_ANEW.name,  # when a load was cut
    metrics.STREAM_UNPROVEN.name,
}


@pytest.fixture
def instance(database: Database, make: MakePipeline) -> Iterator[Instance]:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    database.execute("INSERT INTO orders SELECT i, 'n' || i FROM generate_series(1, 100) AS i")
    pipeline = make(
        ["public.orders"],
        lanes={
            "lake": {"every": "1s"},
            "shapes": {"port": free_port(), "host": "127.0.0.1", "insecure": True},
            "file": {"path": "./changes.ndjson", "execution": "inline"},
        },
        log={"seal_every": "1s"},
        checkpoint={"interval": "1s"},
        verify={"every": "1s", "sample": "50%"},
    )
    made = Instance(pipeline, "one")
    with instances(made):
        yield made.start()


def get(instance: Instance, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{instance.port}{path}", timeout=120) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:  # it does not listen yet
        return 0, ""


def penstock(instance: Instance, *arguments: str) -> list[str]:
    command = "from penstock.cli.main import main; main()"
    return [sys.executable, "-c", command, "-c", str(instance.file), *arguments]


def test_somebody_who_watches_is_told_every_number_and_no_secret(
    database: Database, instance: Instance
) -> None:
    instance.wait_until(lambda: get(instance, "/health")[0] == 200, "the instance to be ready")
    database.execute("UPDATE orders SET note = 'changed' WHERE id <= 10")
    position = flushed_position(database.url)
    slot = instance.pipeline.name
    instance.wait_until(
        lambda: is_acknowledged(database.url, slot, position), "the change to be in the table"
    )

    sent = [event["value"]["op"] for event in events_of(instance.file.with_name("changes.ndjson"))]
    assert sent == ["r"] * 100 + ["u"] * 10, "the source is acknowledged when the stream has it too"

    lanes = yaml.safe_load(instance.file.read_text())["lanes"]
    with urllib.request.urlopen(
        f"http://127.0.0.1:{lanes['shapes']['port']}/v1/shape?table=orders&offset=-1"
    ) as answer:
        handle = answer.headers["electric-handle"]
    subprocess.run(penstock(instance, "shapes", "drop", handle), check=True)

    expected = {metric.name for metric in METRICS} - ONLY_OF_OTHERS
    told: set[str] = set()

    def is_all_told() -> bool:
        families = text_string_to_metric_families(get(instance, "/metrics")[1])
        told.update(sample.name for family in families for sample in family.samples)
        return told >= expected

    try:
        instance.wait_until(is_all_told, "every metric", 30)
    finally:
        print("not told:", sorted(expected - told))
    assert told <= BY_NAME.keys()
    values = instance.metrics()
    assert values['penstock_applied_rows_total{operation="update",stream="public.orders"}'] == 10
    assert values['penstock_loaded_rows_total{stream="public.orders"}'] == 100
    assert values["penstock_leading"] == 1
    assert values["penstock_samples_dropped_total"] == 0
    assert 0 < values['penstock_freshness_seconds{stream="public.orders"}'] < 120

    shown = subprocess.run(penstock(instance, "status"), capture_output=True, text=True, check=True).stdout
    assert "leading" in shown
    document = json.loads(
        subprocess.run(penstock(instance, "--json", "status"), capture_output=True, check=True).stdout
    )
    assert document["running"]["health"] == {"live": True, "ready": True, "role": "leading", "reasons": []}
    assert [lane["lane"] for lane in document["running"]["lanes"]] == ["file", "lake", "shapes"]
    assert _watched(instance, until="public.orders") == 0

    password = database.server.password
    assert len(password) >= 8
    said = "".join(get(instance, path)[1] for path in ("/metrics", "/health", "/status", "/nothing"))
    assert password not in said + shown + json.dumps(document) + instance.said()
    run_file = instance.state / "run.json"
    assert password not in run_file.read_text()
    assert instance.stop() == 0
    assert not run_file.exists()


def _watched(instance: Instance, until: str) -> int:
    """Watch on a terminal until it shows this, then Ctrl-C; the exit code."""
    ours, its = pty.openpty()
    watching = subprocess.Popen(penstock(instance, "status", "--watch"), stdout=its, stderr=its)
    os.close(its)
    seen = b""

    def is_seen() -> bool:
        nonlocal seen
        if select.select([ours], [], [], 0)[0]:
            seen += os.read(ours, 65536)
        return until.encode() in seen and b"leading" in seen

    try:
        wait_until(is_seen, f"a screen with {until}: {seen!r}", 60)
        watching.send_signal(signal.SIGINT)
        while watching.poll() is None and select.select([ours], [], [], 30)[0]:
            try:
                os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
        return watching.wait(120)
    finally:
        watching.kill()
        watching.wait()
        os.close(ours)
