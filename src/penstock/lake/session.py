"""The Spark session of the lake lane, and the way work runs on it.

Work is a list of task descriptions; each becomes one Spark partition. `run_tasks` ships the
descriptions with the function, so that **rows stay in Arrow inside the task, from the source to the
file, and never pass the JVM**: what comes back is one small result per task. Spark may run a task
twice; a task's files carry a fresh random name, only files in a returned result are ever committed,
and the rest are swept.

A Penstock error raised in a task reaches the caller as itself; any other failure is a `SparkError`.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from penstock.core.errors import PenstockError, SparkError
from penstock.lake.java import ensure_java

Task = TypeVar("Task")
Result = TypeVar("Result")

_LOGGING = Path(__file__).with_name("log4j2.properties")
_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.scheduler.mode": "FAIR",
    "spark.speculation": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{_LOGGING}",
}
_ON_ONE_MACHINE = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def spark_session(master: str, conf: Mapping[str, str], log_file: Path) -> SparkSession:
    """The session of this process, started if there is none (5–10 s). The JVM prints to `log_file`."""
    ensure_java()
    # Without this, workers run whatever `python3` is first on the PATH.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    settings = {**_DEFAULTS, **(_ON_ONE_MACHINE if master.startswith("local") else {}), **conf}
    spark_conf = SparkConf(loadDefaults=False).setMaster(master).setAppName("penstock")
    for name, value in settings.items():
        spark_conf.set(name, value)
    if SparkContext._gateway is None:
        log_file.parent.mkdir(parents=True, exist_ok=True)
        with open(log_file, "wb") as log:
            gateway = launch_gateway(spark_conf, {"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway, conf=spark_conf)
    return SparkSession.builder.config(conf=spark_conf).getOrCreate()


def run_tasks(
    spark: SparkSession,
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    description: str,
    at_once: int | None = None,
) -> list[Result]:
    """Run `function` on each task, one Spark partition each; results in the order of `tasks`.

    With `at_once` no more tasks than that run at a time, whatever the cluster has.
    """
    if not tasks:
        return []
    payloads = [pickle.dumps(task) for task in tasks]

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield pa.RecordBatch.from_pydict(
                    {"task": [index], "result": [_run(function, payloads[index])]}
                )

    count = len(tasks)
    spark.sparkContext.setLocalProperty("spark.job.description", description)
    frame = spark.range(0, count, 1, min(count, at_once or count)).mapInArrow(
        work, "task long, result binary"
    )
    try:
        collected = frame.collect()
    except (PySparkException, Py4JError) as error:
        raise SparkError(
            f"The Spark job to {description} failed.",
            detail=f"{type(error).__name__}; the Spark log in the state directory may say more.",
            remedy="Run the same command again; it goes on where it stopped.",
        ) from error
    rows = sorted(collected, key=lambda row: int(row["task"]))
    results = [pickle.loads(row["result"]) for row in rows]
    for result in results:
        if isinstance(result, PenstockError):
            raise result
    return results


def _run(function: Callable[[Task], Result], payload: bytes) -> bytes:
    # A task has one core: threads of its own would only take turns with the other tasks'.
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    try:
        return pickle.dumps(function(pickle.loads(payload)))
    except PenstockError as error:
        return pickle.dumps(error)
