"""What a standby has ready for the moment when it takes over.

A Spark session, if it is to be warm: its Python workers run and have imported our tasks. The first job of a
session spends seconds on starting workers, on imports and on loading classes, and Spark ends workers that
were idle for a minute. A small job every so often spares a standby all that. Until the first of them is done
it is no faster than a cold one, so that is told.

And Java with Iceberg's classes, if there are such tables, also if it is to be cold: whether another instance
has led since is asked of the tables before anything is read, and the first answer of a process costs a second
or two.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module

from penstock.lake.session import run_tasks
from penstock.lake.spark_starter import SparkStarter

EVERY_S = 30.0
OPEN_AFTER_S = 2.0  # who leads at once opens tables anyway
_MODULES = tuple(
    f"penstock.lake.{name}" for name in ("fold_task", "rewrite_task", "complete_task", "delete_task")
)


@contextmanager
def kept_warm(spark: SparkStarter, on_warm: Callable[[], None]) -> Iterator[None]:
    """In a thread of its own until the end of the block, which does not wait for a job under way.

    `on_warm` is called once, when the first job is done, and not after the block.
    """
    ended, telling = threading.Event(), threading.Lock()

    def tell() -> None:
        with telling:
            if not ended.is_set():
                on_warm()

    threading.Thread(target=_keep, args=(spark, ended, tell), name="lake-warmth", daemon=True).start()
    try:
        yield
    finally:
        with telling:
            ended.set()


@contextmanager
def opened_beside(open_table: Callable[[], object]) -> Iterator[None]:
    """In a thread of its own, if the block lasts so long; the block does not wait for it.

    So at every wait of a process: after the first it costs a look at the catalog.
    """
    ended = threading.Event()

    def work() -> None:
        if not ended.wait(OPEN_AFTER_S):
            with suppress(Exception):  # who needs a table is told what is wrong with it
                open_table()

    threading.Thread(target=work, name="lake-opening", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _keep(spark: SparkStarter, ended: threading.Event, on_warm: Callable[[], None]) -> None:
    try:
        session = spark()
        count = session.sparkContext.defaultParallelism
        is_first = True
        while not ended.is_set():
            run_tasks(session, _import, [_MODULES] * count, "keep workers ready", at_once=count)
            if is_first:
                is_first = False
                on_warm()
            ended.wait(EVERY_S)
    except Exception:
        return  # whoever needs the session next is told what is wrong with it


def _import(modules: tuple[str, ...]) -> None:
    """On a worker."""
    for module in modules:
        import_module(module)
