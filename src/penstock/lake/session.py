"""The Spark session of the lake lane, and the way work runs on it.

Work is a list of task descriptions. `run_tasks` ships the descriptions with the function, so that **rows
stay in Arrow inside the task, from the source to the file, and never pass the JVM**: what comes back is one
small result per task. Spark may run a task twice, also at the same time on two machines: the files of each
attempt carry names of their own (`of_this_attempt`), only files in a returned result are ever committed, and
the rest are swept.

A Spark partition costs 0.15 CPU-seconds before its first row (PySpark reads the list of its own zip file
again and collects garbage for each; `worker` spares that from the second on), so many tasks share few
partitions, cut to equal weight.

On a cluster the executors need the package and the paths of the pipeline file, nothing else: functions are
sent by name, tasks by value, and settings that only make sense on this machine stay with the driver.
`cluster` asks them at the start.

A Penstock error raised in a task reaches the caller as itself; any other failure is a `SparkError`.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import pickle
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext, TaskContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from penstock.core.errors import PenstockError, SparkError
from penstock.lake.class_archive import archive_options
from penstock.lake.java import ensure_java
from penstock.lake.worker import leave_little_to_do

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
}
_ON_ONE_MACHINE = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_PYTHON = "spark.pyspark.python"

LOG_BYTES_MAX = 8 * 1024 * 1024  # of what the JVM prints, twice
_LOG_LOOK_EVERY_S = 10.0

#: More partitions than that for each core would cost more than they balance.
PARTITIONS_PER_CORE_MAX = 4


_starting = threading.Lock()


def spark_session(master: str, conf: Mapping[str, str], log_file: Path) -> SparkSession:
    """The session of this process, started if there is none (5–10 s). The JVM prints to `log_file`."""
    spark_gateway(master, conf, log_file)
    session = SparkSession.builder.config(conf=_spark_conf(master, conf)).getOrCreate()
    _register_data_source(session)
    return session


def spark_gateway(master: str, conf: Mapping[str, str], log_file: Path) -> JavaGateway:
    """The JVM of this process with the session's settings and jars, started if there is none (1–2 s).

    A session needs as much again and more; who only wants Java's libraries is spared that.
    """
    with _starting:
        if SparkContext._gateway is None:
            _start_java(_spark_conf(master, conf), conf, log_file)
        return SparkContext._gateway


def _start_java(spark_conf: SparkConf, conf: Mapping[str, str], log_file: Path) -> None:
    ensure_java()
    # Without this, workers run whatever `python3` is first on the PATH. A cluster's machines may have theirs
    # elsewhere than this one; PySpark takes the path from the environment alone.
    os.environ["PYSPARK_PYTHON"] = conf.get(_PYTHON, sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    log_file.parent.mkdir(parents=True, exist_ok=True)
    shorten_log(log_file)
    # To be written to at its end only: instances that stand by for each other share it.
    with open(log_file, "ab") as log, _alone_in(conf.get("spark.jars.ivy")):
        gateway = launch_gateway(spark_conf, {"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
    SparkContext._ensure_initialized(gateway=gateway, conf=spark_conf)
    threading.Thread(target=_keep_short, args=(log_file,), name="spark-log", daemon=True).start()


def _spark_conf(master: str, conf: Mapping[str, str]) -> SparkConf:
    made = SparkConf(loadDefaults=False).setMaster(master).setAppName("penstock")
    for name, value in session_settings(master, conf).items():
        made.set(name, value)
    return made


def shorten_log(log_file: Path) -> None:
    """When it is long, begin it anew and keep what it held beside it.

    In place, for a JVM lives as long as `penstock run` does and has the file open: Log4j's own rolling would
    leave out what is printed past it, by workers above all.
    """
    with contextlib.suppress(FileNotFoundError):
        if log_file.stat().st_size > LOG_BYTES_MAX:
            with contextlib.suppress(OSError):  # a full disk most of all wants it short
                shutil.copyfile(log_file, log_file.with_name(f"{log_file.name}.1"))
            os.truncate(log_file, 0)


def _keep_short(log_file: Path) -> None:
    while True:
        time.sleep(_LOG_LOOK_EVERY_S)
        with contextlib.suppress(OSError):
            shorten_log(log_file)


@contextmanager
def _alone_in(directory: str | None) -> Iterator[None]:
    """One process at a time downloads jars into a directory; the next one finds them there."""
    if directory is None:
        yield
        return
    Path(directory).mkdir(parents=True, exist_ok=True)
    with open(Path(directory) / "lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _register_data_source(session: SparkSession) -> None:
    # Here, not above: executors import this module, and need none of it.
    from penstock.lake.data_source import PenstockSource

    session.dataSource.register(PenstockSource)


def session_settings(master: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Our defaults under what the pipeline file says. The driver's Java gets our options besides its own."""
    given = conf.get(_JAVA_OPTIONS, "")
    archive = "" if "-XX:ArchiveClassesAtExit" in given else archive_options()
    logging = f"-Dlog4j2.configurationFile=file:{_LOGGING}"
    options = " ".join(each for each in (logging, archive, given) if each)
    here = _ON_ONE_MACHINE if is_on_one_machine(master) else {}
    return {**_DEFAULTS, **here, **conf, _JAVA_OPTIONS: options}


def is_on_one_machine(master: str) -> bool:
    return master == "local" or master.startswith(("local[", "local-cluster["))


def run_tasks(
    spark: SparkSession,
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    description: str,
    at_once: int | None = None,
    weights: Sequence[int] | None = None,
) -> list[Result]:
    """Run `function` on each task; results in the order of `tasks`.

    With `at_once` no more tasks than that run at a time, whatever the cluster has. `weights` says how much
    work each task is beside the others; without them they count as equal.
    """
    if not tasks:
        return []
    count = at_once or PARTITIONS_PER_CORE_MAX * spark.sparkContext.defaultParallelism
    shares = balanced(weights or [1] * len(tasks), min(len(tasks), count))
    payloads = [[(index, pickle.dumps(tasks[index])) for index in share] for share in shares]

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for share in batch.column(0).to_pylist():
                for index, payload in payloads[share]:
                    yield pa.RecordBatch.from_pydict({"task": [index], "result": [_run(function, payload)]})

    spark.sparkContext.setLocalProperty("spark.job.description", description)
    frame = spark.range(0, len(shares), 1, len(shares)).mapInArrow(work, "task long, result binary")
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


def balanced(weights: Sequence[int], count: int) -> list[list[int]]:
    """The indices of `weights` in at most `count` shares of about equal weight: the heaviest goes first."""
    shares: list[list[int]] = [[] for _ in range(count)]
    loads = [(0, share) for share in range(count)]
    for index in sorted(range(len(weights)), key=lambda index: -weights[index]):
        load, share = heapq.heappop(loads)
        shares[share].append(index)
        heapq.heappush(loads, (load + max(1, weights[index]), share))
    return [sorted(share) for share in shares if share]


def of_this_attempt(path: Path) -> Path:
    """`path` with a name that no other attempt of the same task uses; outside of a task, as it is."""
    context = TaskContext.get()
    if context is None:
        return path
    return path.with_name(f"{path.stem}-{context.taskAttemptId()}{path.suffix}")


def _run(function: Callable[[Task], Result], payload: bytes) -> bytes:
    # A task has one core: threads of its own would only take turns with the other tasks'.
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    try:
        return pickle.dumps(function(pickle.loads(payload)))
    except PenstockError as error:
        return pickle.dumps(error)
    finally:
        if TaskContext.get() is not None:
            leave_little_to_do()
