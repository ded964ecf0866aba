"""A stream lane whose backlogs are encoded by Spark: `execution: spark`, and `auto` on many cores.

Otherwise it is `penstock.streams`. Spark is started when a backlog of `spark_bytes_min` waits; its tasks turn
ranges of the log into files of events, a wave of them while the lane sends the wave before. A task that runs
twice writes a file of its own, and only files of attempts that came back are sent; the rest go with the
staging directory. Speculation is off, as for all work of ours (`lake.session`).
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from penstock import logs
from penstock.channel import Channel
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.streams.bulk import LogRangeToEncode, encode_range, read_range
from penstock.streams.events import Batch
from penstock.streams.followed import FollowedStream
from penstock.streams.service import run
from penstock.streams.settings import StreamSettings

STAGING = "staging"


class SparkEncoder:
    """Starts a session when it is first needed, and keeps it: a backlog seldom comes alone."""

    def encoded(
        self,
        settings: StreamSettings,
        streams: Mapping[StreamId, FollowedStream],
        after: Lsn,
        ends: Sequence[Lsn],
    ) -> Generator[Batch]:
        from penstock.lake.destination import session_of

        spark = session_of(settings.pipeline)
        staging = settings.directory / STAGING
        shutil.rmtree(staging, ignore_errors=True)
        wave = max(1, spark.sparkContext.defaultParallelism)
        tasks = [
            LogRangeToEncode(settings, streams, start, end, staging / f"{end:016x}")
            for start, end in itertools.pairwise([after, *ends])
        ]
        waves = [tasks[at : at + wave] for at in range(0, len(tasks), wave)]
        with ThreadPoolExecutor(1, "spark-wave") as ahead:
            try:
                coming = ahead.submit(self._wave, spark, waves[0])
                for following in [*waves[1:], None]:
                    files = coming.result()
                    if following is not None:
                        coming = ahead.submit(self._wave, spark, following)
                    for path in files:
                        yield from read_range(path)
            finally:
                spark.sparkContext.cancelAllJobs()
                ahead.shutdown(wait=True)
                shutil.rmtree(staging, ignore_errors=True)

    def _wave(self, spark: object, tasks: list[LogRangeToEncode]) -> list[Path]:
        from penstock.lake.session import run_tasks

        return run_tasks(spark, _encode_in_task, tasks, "encode changes")  # type: ignore[arg-type]  # a session


def _encode_in_task(task: LogRangeToEncode) -> Path:
    from penstock.lake.session import of_this_attempt

    return encode_range(replace(task, path=of_this_attempt(task.path)))


def main() -> int:
    channel = Channel()
    logs.configure("json")
    return run(channel, SparkEncoder())


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # Threads of gRPC, py4j and clients may still wait for somebody; nothing of theirs is needed any more.
    os._exit(status)
