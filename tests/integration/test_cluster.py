"""Spark as a cluster: machines may go while they work, and the tables are exact."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import Database, wait_until
from tests.pipelines import PipelineUnderTest, RunningSync
from tests.spark_cluster import SparkCluster, kill_machine

ROWS = 1_000_000
STREAM = "public.accounts"
SYNC_TIMEOUT_S = 400.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path / "cluster") as running:
        yield running


def on(cluster: SparkCluster, directory: Path, database: Database, **conf: str) -> PipelineUnderTest:
    settings = {
        "spark": {
            "master": cluster.url,
            "conf": {
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.driver.memory": "512m",
                "spark.executor.memory": "512m",
                **conf,
            },
        },
        "load": {"rows_per_chunk": 60_000},
    }
    return PipelineUnderTest(directory, database.url, [STREAM], settings)


class Tasks:
    """Lets every task stop when it is about to write rows to a file of the table, until told to go on."""

    def __init__(self, directory: Path) -> None:
        self._name = secrets.token_hex(4)
        self.report = directory / f"tasks-{self._name}"
        self.gate = directory / f"gate-{self._name}"

    @property
    def conf(self) -> dict[str, str]:
        return {
            "spark.executorEnv.PENSTOCK_FAILPOINT": "destination.file_write=pause",
            "spark.executorEnv.PENSTOCK_FAILPOINT_REPORT": str(self.report),
            "spark.executorEnv.PENSTOCK_FAILPOINT_GATE": str(self.gate),
        }

    def wait_until_paused(self, count: int, running: RunningSync) -> None:
        def paused() -> bool:
            assert running.process.poll() is None, f"the sync ended: {running.wait()}"
            return self.report.exists() and len(self.report.read_text().splitlines()) >= count

        wait_until(paused, f"{count} tasks to be in the middle of their work", timeout_s=120)

    def go_on(self) -> None:
        self.gate.touch()


def sync_with_a_machine_lost(
    pipeline: PipelineUnderTest, tasks: Tasks, machine: psutil.Process
) -> tuple[list[str], set[str]]:
    """The command lines that died, and the files that dead tasks left half written."""
    running = pipeline.start_sync()
    # Both machines have one core: when two tasks wait, each machine has one.
    tasks.wait_until_paused(2, running)
    before = {
        path.name for directory in ("_files", "data") for path in pipeline.warehouse.rglob(f"{directory}/*")
    }
    died = kill_machine(machine)
    tasks.go_on()
    ended = running.wait(SYNC_TIMEOUT_S)
    assert ended.status == 0, str(ended)
    return died, before - pipeline.files(STREAM)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_machine_lost_in_the_middle_of_its_tasks_changes_no_table(
    database: Database, cluster: SparkCluster, tmp_path: Path
) -> None:
    database.execute(
        "CREATE TABLE accounts (id bigint PRIMARY KEY, owner text, balance numeric(12,2), at timestamptz)"
    )
    database.execute(
        f"INSERT INTO accounts SELECT n, md5(n::text), n * 0.37, '2026-01-01Z'::timestamptz + n * "
        f"interval '1 s' FROM generate_series(1, {ROWS}) n; ANALYZE accounts"
    )
    first, second = cluster.add_worker(), cluster.add_worker()
    loading = Tasks(tmp_path)
    pipeline = on(cluster, tmp_path / "pipeline", database, **loading.conf)
    died, left = sync_with_a_machine_lost(pipeline, loading, first)
    assert any("pyspark.daemon" in line for line in died), f"no task died: {died}"
    assert left, "the dead task had begun a file"
    pipeline.assert_same(STREAM)

    database.execute("UPDATE accounts SET balance = balance + 1 WHERE id % 2 = 0")
    database.execute("DELETE FROM accounts WHERE id % 5 = 1")
    database.execute(
        f"INSERT INTO accounts SELECT n, 'new', n, now() FROM generate_series({ROWS + 1}, {ROWS + 300_000}) n"
    )
    cluster.add_worker()
    following = Tasks(tmp_path)
    pipeline.settings = on(cluster, tmp_path / "other", database, **following.conf).settings
    pipeline.write_file()
    died, left = sync_with_a_machine_lost(pipeline, following, second)
    assert any("pyspark.daemon" in line for line in died), f"no task died: {died}"
    assert left, "the dead task had begun a file"
    pipeline.assert_same(STREAM)
    pipeline.wait_until_nothing_runs()
    pipeline.drop()


@pytest.mark.slow
def test_executors_without_the_package_are_found_out(
    database: Database, cluster: SparkCluster, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE accounts (id bigint PRIMARY KEY); INSERT INTO accounts VALUES (1)")
    cluster.add_worker()
    pipeline = on(cluster, tmp_path / "pipeline", database, **{"spark.pyspark.python": "/usr/bin/python3"})
    ended = pipeline.sync_apart()
    assert ended.status == 2, str(ended)
    assert "spark.pyspark.python" in ended.answer["error"]["remedy"], str(ended)
    pipeline.drop()
