"""`mysql-replication` reading rows of a binary log into Python objects, and throwing them away."""

from __future__ import annotations

from pathlib import Path

from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import WriteRowsEvent
from rich.console import Console

from bench.binlog import PEER_BARS, PEER_ROWS, MeasuredLog, compare_with, measured
from bench.comparison import Comparison, Run

_SERVER_ID = 4_712


def read_objects(log: MeasuredLog) -> Run:
    reader = BinLogStreamReader(
        connection_settings={"host": "127.0.0.1", "port": log.server.port, "user": "root", "passwd": ""},
        server_id=_SERVER_ID,
        log_file=log.start.file,
        log_pos=log.start.offset,
        resume_stream=True,
        only_events=[WriteRowsEvent],
    )

    def read() -> None:
        rows = 0
        for event in reader:
            rows += len(event.rows)
            if rows == log.rows:
                return

    try:
        return measured(log.rows, read)
    finally:
        reader.close()


def compare(rounds: int, directory: Path, console: Console) -> list[Comparison]:
    return [
        compare_with(
            read_objects, "mysql-replication", PEER_BARS, PEER_ROWS, rounds, directory, console, single=single
        )
        for single in (False, True)
    ]
