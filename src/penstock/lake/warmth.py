"""Keeps a Spark session ready while nobody needs it: its Python workers run and have imported our tasks.

The first job of a session spends seconds on starting workers, on imports and on loading classes, and Spark
ends workers that were idle for a minute. A small job every so often spares a standby all that when it takes
over.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from penstock.lake.session import run_tasks
from penstock.lake.spark_starter import SparkStarter

EVERY_S = 30.0
_MODULES = tuple(
    f"penstock.lake.{name}" for name in ("fold_task", "rewrite_task", "complete_task", "delete_task")
)


@contextmanager
def kept_warm(spark: SparkStarter) -> Iterator[None]:
    """In a thread of its own until the end of the block, which does not wait for a job under way."""
    ended = threading.Event()
    threading.Thread(target=_keep, args=(spark, ended), name="lake-warmth", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _keep(spark: SparkStarter, ended: threading.Event) -> None:
    try:
        session = spark()
        count = session.sparkContext.defaultParallelism
        while not ended.is_set():
            run_tasks(session, _import, [_MODULES] * count, "keep workers ready", at_once=count)
            ended.wait(EVERY_S)
    except Exception:
        return  # whoever needs the session next is told what is wrong with it


def _import(modules: tuple[str, ...]) -> None:
    """On a worker."""
    for module in modules:
        import_module(module)
