"""Asks the executors of a cluster, once per session, whether they can do what tasks will ask of them.

A task needs the package in the executor's Python, in this version, and the pipeline's directories: it reads
the change log and writes the tables' files under the paths that the driver knows. On one machine both hold by
themselves. On a cluster neither does, and either would show late: as an import error in a worker's log, or as
files that were written to another machine's disk. So a job of its own looks first. Each task reads a file
that the driver put into each directory and leaves one that the driver must find.
"""

from __future__ import annotations

import secrets
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

import penstock
from penstock import durable
from penstock.core.errors import ConfigError, SparkError
from penstock.lake.session import is_on_one_machine, of_this_attempt, run_tasks, spark_session

_BY_DRIVER = "driver"


@dataclass(frozen=True, slots=True)
class Look:
    """What a task is asked: which of these directories, all made by the driver, it shares with it."""

    directories: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    machine: str
    version: str
    missing: tuple[Path, ...]
    left: tuple[Path, ...]  # files that the driver must find


def checked_session(
    master: str, conf: Mapping[str, str], log_file: Path, directories: Sequence[Path]
) -> SparkSession:
    """The session of this process; on a cluster, one whose executors share these directories with us."""
    session = spark_session(master, conf, log_file)
    if not is_on_one_machine(master):
        check_cluster(session, directories)
    return session


def check_cluster(spark: SparkSession, directories: Sequence[Path]) -> None:
    """Return if the executors can work here; else a `ConfigError` says what they lack."""
    probes = tuple(directory / f".penstock-{secrets.token_hex(8)}" for directory in directories)
    try:
        for probe in probes:
            with durable.storage_errors(f"Could not write in {probe.parent}."):
                probe.mkdir(parents=True)
                (probe / _BY_DRIVER).touch()
        judge(_ask(spark, probes))
    finally:
        for probe in probes:
            shutil.rmtree(probe, ignore_errors=True)


def _ask(spark: SparkSession, probes: tuple[Path, ...]) -> list[Seen]:
    # One for each core: with luck of scheduling every executor gets some.
    count = spark.sparkContext.defaultParallelism
    try:
        return run_tasks(spark, look, [Look(probes)] * count, "look at the executors", at_once=count)
    except SparkError as error:
        raise ConfigError(
            "The executors of the Spark cluster could not run a task of Penstock's.",
            detail="The Spark log in the state directory may say why; often the package is missing there.",
            remedy=f"Install penstock {penstock.__version__} where the executors run, and name its Python by "
            "`spark.pyspark.python` in `spark.conf` if it is not at the same path as here.",
        ) from error


def look(task: Look) -> Seen:
    """On an executor."""
    missing, left = [], []
    for directory in task.directories:
        if not (directory / _BY_DRIVER).exists():
            missing.append(directory.parent)
            continue
        mark = of_this_attempt(directory / f"{socket.gethostname()}.{secrets.token_hex(4)}")
        mark.touch()
        left.append(mark)
    return Seen(socket.gethostname(), penstock.__version__, tuple(missing), tuple(left))


def judge(answers: Sequence[Seen]) -> None:
    """Back on the driver."""
    for seen in answers:
        if seen.version != penstock.__version__:
            raise ConfigError(
                f"The executor on {seen.machine} has Penstock {seen.version}.",
                remedy=f"Install {penstock.__version__} there, as the driver has it.",
            )
        lost = [mark.parent.parent for mark in seen.left if not mark.exists()]
        for directory in (*seen.missing, *lost):
            raise ConfigError(
                f"The executor on {seen.machine} does not share {directory} with the driver.",
                remedy="On a cluster, `state` and the destination must be on storage that every machine has "
                "under the same path.",
            )
