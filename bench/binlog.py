"""The binary log of a real MySQL, decoded into Arrow columns, against its packets read and thrown away.

Rows of 11 columns, in transactions of 1,000 and of one. The reference is PyMySQL's own loop over packets of
the same log, undecoded; in `bench.peers` it is `mysql-replication`, which makes Python objects of fewer such
rows, its speed being what it is. Each run opens a connection of its own, asks for the log from the
same position, and ends with the last row; connecting is not counted. Ours counts all rows it has decoded.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from bench.comparison import Bars, Comparison, Run
from bench.resources import Usage, peak_bytes
from penstock.sources.mysql.binlog import packets
from penstock.sources.mysql.binlog.charsets import read_collations
from penstock.sources.mysql.binlog.events import Carry, Scan, Tables, scan
from penstock.sources.mysql.binlog.packets import EventBatch
from penstock.sources.mysql.binlog.rows import RowLayout, decode_rows
from penstock.sources.mysql.binlog.stream import BinlogStream, FilePosition
from penstock.sources.mysql.binlog.unwrapping import unwrap
from tests.mysql_server import MYSQL, MysqlServer

RAW_BARS = Bars(ratio_min=0.5)
PEER_BARS = Bars(ratio_min=10.0)
PEER_ROWS = 50_000
_ROWS_PER_TRANSACTION = 1_000
_SERVER_ID = 4_711
_READ_S = 30.0
_TABLE = """
CREATE TABLE measured (
    id BIGINT PRIMARY KEY, small INT, large BIGINT, amount DECIMAL(12,2), title VARCHAR(200),
    digest VARCHAR(80), at DATETIME(6), day DATE, flag TINYINT, ratio DOUBLE, document VARCHAR(200))
"""
_VALUES = """
    i, MOD(i, 1000), i * 123456789, MOD(i, 100000) * 1.37, CONCAT('some text value ', i),
    LEFT(SHA2(i, 256), 32),
    NOW(6), CURRENT_DATE, MOD(i, 2), i * 3.14159, CONCAT('{"key": ', i, ', "value": "abc"}')
"""
_ONE_BY_ONE = f"""
CREATE PROCEDURE one_by_one(first INT, last INT)
BEGIN
    DECLARE i INT DEFAULT first;
    WHILE i < last DO INSERT INTO measured SELECT {_VALUES}; SET i = i + 1; END WHILE;
END
"""


@dataclass(frozen=True)
class MeasuredLog:
    """Rows in the log of a server, between two positions of one file."""

    server: MysqlServer
    rows: int
    start: FilePosition
    end: int


@contextmanager
def new_log(directory: Path, rows: int, *, single: bool) -> Iterator[MeasuredLog]:
    with MysqlServer(directory, MYSQL, ["--max-binlog-size=1G"]) as server:
        server.execute("CREATE DATABASE bench")
        with server.connect("bench") as connection, connection.cursor() as cursor:
            cursor.execute(_TABLE)
            cursor.execute(_ONE_BY_ONE)
            cursor.execute("CREATE TABLE series (n INT PRIMARY KEY)")
            numbers = ",".join(f"({number})" for number in range(_ROWS_PER_TRANSACTION))
            cursor.execute(f"INSERT INTO series VALUES {numbers}")
            start = FilePosition(*server.position())
            if single:
                cursor.execute(f"CALL one_by_one(0, {rows})")
            else:
                for first in range(0, rows, _ROWS_PER_TRANSACTION):
                    cursor.execute(
                        f"INSERT INTO measured SELECT {_VALUES} "
                        f"FROM (SELECT n + {first} AS i FROM series) AS s"
                    )
        file, end = server.position()
        assert file == start.file
        yield MeasuredLog(server, rows, start, end)


def read_raw(log: MeasuredLog) -> Run:
    """PyMySQL's loop over packets; of an event only its position is looked at."""
    connection: Any = log.server.connect()
    with connection.cursor() as cursor:
        cursor.execute("SET @source_binlog_checksum = @@global.binlog_checksum")
    connection._write_bytes(packets.command(packets.dump(_SERVER_ID, log.start.file, log.start.offset)))
    connection._next_seq_id = 1

    def read() -> None:
        while True:
            packet = connection._read_packet()._data
            if packet[5] != 4 and int.from_bytes(packet[14:18], "little") >= log.end:  # 4: a change of file
                return

    try:
        return measured(log.rows, read)
    finally:
        connection._force_close()


def read_decoded(log: MeasuredLog) -> Run:
    with log.server.connect() as connection:
        collations = read_collations(connection)
    with closing(BinlogStream(log.server.connect(), log.start, _SERVER_ID)) as stream:
        decoding = _Decoding(collations)

        def read() -> None:
            while True:
                batch = stream.read(_READ_S)
                assert batch is not None
                if decoding.take(batch) >= log.end:
                    return

        run = measured(log.rows, read)
    assert decoding.rows == log.rows, "every row is decoded once"
    return run


class _Decoding:
    def __init__(self, collations: dict[int, str]) -> None:
        self.rows = 0
        self._collations = collations
        self._tables = Tables()
        self._carry = Carry()
        self._layouts: dict[int, RowLayout] = {}

    def take(self, batch: EventBatch) -> int:
        """Decode a batch; the position behind its last whole transaction."""
        position = 0
        for plain in unwrap(batch):
            found = scan(plain, 0, len(plain), self._carry, self._tables)
            for table in found.tables.tolist():
                self._decode(plain, found, table)
            if len(found.end_position):
                position = int(found.end_position[-1])
        return position

    def _decode(self, batch: EventBatch, found: Scan, table: int) -> None:
        if table not in self._layouts:
            self._layouts[table] = RowLayout.of(self._tables.maps[table], self._collations)
        rows = np.flatnonzero(found.table == table)
        images = decode_rows(
            batch, found.kind[rows], found.row_at[rows], found.present_at[rows], self._layouts[table]
        )
        self.rows += len(images.columns[0])


def measured(rows: int, work: Callable[[], None]) -> Run:
    cpu, start = time.process_time(), time.perf_counter()
    work()
    seconds, used = time.perf_counter() - start, time.process_time() - cpu
    return Run(rows, Usage(seconds, used, peak_bytes(os.getpid())))


def compare(rows: int, rounds: int, directory: Path, console: Console) -> list[Comparison]:
    """In transactions of 1,000 rows; and a tenth of the rows in transactions of one."""
    return [
        compare_with(read_raw, "raw packets", RAW_BARS, count, rounds, directory, console, single=single)
        for count, single in ((rows, False), (rows // 10, True))
    ]


def compare_with(
    read_reference: Callable[[MeasuredLog], Run],
    reference: str,
    bars: Bars,
    rows: int,
    rounds: int,
    directory: Path,
    console: Console,
    *,
    single: bool,
) -> Comparison:
    size = "one row" if single else f"{_ROWS_PER_TRANSACTION:,} rows"
    comparison = Comparison(
        "binlog-single" if single else "binlog",
        f"{rows:,} rows of a MySQL binary log to Arrow, {size} a transaction",
        reference,
        bars,
    )
    with new_log(directory / comparison.name, rows, single=single) as log:
        read_decoded(log)  # compiles
        for _ in range(rounds):
            console.log(comparison.add_round(read_reference(log), read_decoded(log)))
    return comparison
