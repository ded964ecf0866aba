"""The binary log of a real MySQL, decoded into Arrow columns, against its packets read and thrown away.

Rows of 11 columns, in transactions of 1,000 and of one. The reference is PyMySQL's own loop over packets of
the same log, undecoded; in `bench.peers` it is `mysql-replication`, which makes Python objects of fewer such
rows, its speed being what it is. Each run opens a connection of its own, asks for the log from the
same position, and ends with the last row; connecting is not counted. Both sides speak plain TCP, then TLS.

What counts as decoding: bytes are received, checksums verified, events found, rows of each table located,
and every value is in an Arrow column of text; then it is dropped. The whole way, into the sealed change log,
is measured apart: what the capture process uses for the same rows.

Time is told twice, by the clock and in CPU seconds of the process. The server reads its log on the other
core meanwhile: where the clock stands still for it, only the CPU tells what decoding costs.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pymysql
from rich.console import Console

from bench.comparison import Bars, Comparison, Figure, Run
from bench.resources import Usage, peak_bytes
from penstock.capture.client import CaptureProcess
from penstock.capture.source_spec import MysqlSpec
from penstock.capture.spec import CaptureSpec
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.log.reader import ChangeLog
from penstock.sources.mysql.binlog import packets
from penstock.sources.mysql.binlog.charsets import read_collations
from penstock.sources.mysql.binlog.events import Carry, Scan, Tables, scan
from penstock.sources.mysql.binlog.packets import EventBatch
from penstock.sources.mysql.binlog.rows import RowLayout, decode_rows
from penstock.sources.mysql.binlog.stream import BinlogStream, FilePosition
from penstock.sources.mysql.binlog.unwrapping import unwrap
from tests.mysql_server import MARIADB, MYSQL, Kind, MysqlServer

RAW_BARS = Bars(ratio_min=0.5)
PEER_BARS = Bars(ratio_min=10.0)
PEER_ROWS = 50_000
CPU_RATIO_MIN = 0.5
CAPTURE_CPU_S_MAX = 2.5
COMPRESSED_ROWS = 100_000
STREAM = StreamId("bench", "measured")
_COMPRESSION = {
    MYSQL: ("--binlog-transaction-compression=ON",),
    MARIADB: ("--log-bin-compress=ON", "--log-bin-compress-min-len=32"),
}
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
    """Rows in the log of a server, between two positions of one file; a capture has begun before them."""

    server: MysqlServer
    rows: int
    start: FilePosition
    end: int

    def connect(self, *, tls: bool = False) -> Any:
        return pymysql.connect(
            host="127.0.0.1", port=self.server.port, user="root", charset="utf8mb4", ssl_disabled=not tls
        )


@contextmanager
def new_log(
    directory: Path, rows: int, *, single: bool, kind: Kind = MYSQL, compressed: bool = False
) -> Iterator[MeasuredLog]:
    settings = ["--max-binlog-size=1G", *(_COMPRESSION[kind] if compressed else ())]
    with MysqlServer(directory, kind, settings) as server:
        new_table(server, 0)
        if not single:
            with CaptureProcess(_capture_spec(server, directory / "capture")) as begun:
                begun.start()
                _read_all(begun)
        start = FilePosition(*server.position())
        if single:
            server.execute(f"CALL bench.one_by_one(0, {rows})")
        else:
            _insert(server, rows)
        file, end = server.position()
        assert file == start.file
        yield MeasuredLog(server, rows, start, end)


def new_table(server: MysqlServer, rows: int) -> None:
    numbers = ",".join(f"({number})" for number in range(_ROWS_PER_TRANSACTION))
    server.execute("CREATE DATABASE bench")
    with server.connect("bench") as connection, connection.cursor() as cursor:
        cursor.execute(_TABLE)
        cursor.execute(_ONE_BY_ONE)
        cursor.execute("CREATE TABLE series (n INT PRIMARY KEY)")
        cursor.execute(f"INSERT INTO series VALUES {numbers}")
    _insert(server, rows)


def _insert(server: MysqlServer, rows: int) -> None:
    with server.connect("bench") as connection, connection.cursor() as cursor:
        for first in range(0, rows, _ROWS_PER_TRANSACTION):
            cursor.execute(
                f"INSERT INTO measured SELECT {_VALUES} FROM (SELECT n + {first} AS i FROM series) AS s"
            )


def read_raw(log: MeasuredLog, *, tls: bool = False) -> Run:
    """PyMySQL's loop over packets; of an event only its position is looked at."""
    connection = log.connect(tls=tls)
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


def read_decoded(log: MeasuredLog, *, tls: bool = False) -> Run:
    run, rows = _read_decoded(log, tls=tls)
    assert rows == log.rows, "every row is decoded once"
    return run


def _read_decoded(
    log: MeasuredLog, *, tls: bool = False, ids: list[pa.Array] | None = None
) -> tuple[Run, int]:
    """With `ids`, the first column is kept there."""
    with log.connect() as connection:
        collations = read_collations(connection)
    with closing(BinlogStream(log.connect(tls=tls), log.start, _SERVER_ID)) as stream:
        decoding = _Decoding(collations, log.server.kind is MARIADB, ids)

        def read() -> None:
            while True:
                batch = stream.read(_READ_S)
                assert batch is not None
                if decoding.take(batch) >= log.end:
                    return

        run = measured(log.rows, read)
    return run, decoding.rows


class _Decoding:
    def __init__(self, collations: dict[int, str], mariadb: bool, ids: list[pa.Array] | None) -> None:
        self.rows = 0
        self._ids = ids
        self._collations = collations
        self._tables = Tables(mariadb)
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
        rows = slice(None) if len(found.tables) == 1 else np.flatnonzero(found.table == table)
        images = decode_rows(
            batch, found.kind[rows], found.row_at[rows], found.present_at[rows], self._layouts[table]
        )
        self.rows += len(images.columns[0])
        if self._ids is not None:
            self._ids.append(images.columns[0])


def measured(rows: int, work: Callable[[], None]) -> Run:
    cpu, start = time.process_time(), time.perf_counter()
    work()
    seconds, used = time.perf_counter() - start, time.process_time() - cpu
    return Run(rows, Usage(seconds, used, peak_bytes(os.getpid())))


def compare(
    rows: int, rounds: int, directory: Path, console: Console
) -> tuple[list[Comparison], list[Figure]]:
    """In transactions of 1,000 rows; and a tenth of the rows in transactions of one."""
    comparisons: list[Comparison] = []
    figures: list[Figure] = []
    for count, single in ((rows, False), (rows // 10, True)):
        name = "binlog-single" if single else "binlog"
        with new_log(directory / name, count, single=single) as log:
            read_decoded(log)  # compiles
            for tls in (False, True):
                raw, ours = partial(read_raw, tls=tls), partial(read_decoded, tls=tls)
                over = " over TLS" if tls else ""
                comparison = Comparison(name + over, _title(count, single) + over, "raw packets", RAW_BARS)
                for _ in range(rounds):
                    console.log(comparison.add_round(raw(log), ours(log)))
                comparisons.append(comparison)
                figures.append(_cpu_ratio(comparison))
                console.log(f"{comparison.name}: CPU {figures[-1]}")
            if not single:
                figures.append(_capture_cost(log, rounds, directory, console))
    return comparisons, figures + [_missing(kind, directory) for kind in (MYSQL, MARIADB)]


def _cpu_ratio(comparison: Comparison) -> Figure:
    pairs = zip(comparison.reference, comparison.ours, strict=True)
    ratio = median(theirs.usage.cpu_s / own.usage.cpu_s for theirs, own in pairs)
    return Figure(
        f"{comparison.title}: CPU of raw packets ÷ CPU of Penstock", ratio, CPU_RATIO_MIN, at_least=True
    )


def _missing(kind: Kind, directory: Path) -> Figure:
    """Rows whose key is not found once, where the server compresses its log."""
    ids: list[pa.Array] = []
    with new_log(
        directory / f"compressed-{kind.name}", COMPRESSED_ROWS, single=False, kind=kind, compressed=True
    ) as log:
        _, rows = _read_decoded(log, ids=ids)
    found = np.bincount(pc.cast(pa.chunked_array(ids), pa.int64()).to_numpy(), minlength=log.rows)
    missing = int(np.count_nonzero(found != 1)) + abs(rows - log.rows)
    return Figure(f"rows missing of {log.rows:,} in a compressed log of {kind.name}", missing, 0)


def _capture_spec(server: MysqlServer, directory: Path) -> CaptureSpec:
    return CaptureSpec(
        source=MysqlSpec(f"mysql://root@127.0.0.1:{server.port}", "bench", _SERVER_ID),
        log_directory=directory / "log",
        checkpoint_path=directory / "checkpoint.json",
        streams=(STREAM,),
        lanes={"lake": None},
    )


def _read_all(capture: CaptureProcess) -> None:
    capture.read_to(capture.note_target())
    capture.wait_reached()


def _capture_cost(log: MeasuredLog, rounds: int, directory: Path, console: Console) -> Figure:
    """From the request to read until everything is sealed in the log and durable, by the capture process."""
    used = []
    for number in range(rounds):
        copied = directory / f"capture-{number}"
        shutil.copytree(log.server.directory / "capture", copied)
        with CaptureProcess(_capture_spec(log.server, copied)) as capture:
            capture.start()
            assert capture.pid is not None
            process = psutil.Process(capture.pid)
            before, start = process.cpu_times(), time.perf_counter()
            _read_all(capture)
            seconds, after = time.perf_counter() - start, process.cpu_times()
        found = ChangeLog(copied / "log").files(STREAM, Lsn(0), Lsn(2**63))
        assert found.rows == log.rows, "every row is in the log once"
        used.append((after.user + after.system - before.user - before.system) / log.rows * 1e6)
        console.log(f"into the change log: {seconds:.2f} s, {used[-1]:.2f} CPU-s per million rows")
    return Figure(
        "binary log to sealed change log, CPU-s per million rows", median(used), CAPTURE_CPU_S_MAX, "CPU-s"
    )


def _title(rows: int, single: bool) -> str:
    size = "one row" if single else f"{_ROWS_PER_TRANSACTION:,} rows"
    return f"{rows:,} rows of a MySQL binary log to Arrow, {size} a transaction"


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
    comparison = Comparison("binlog-single" if single else "binlog", _title(rows, single), reference, bars)
    with new_log(directory / comparison.name, rows, single=single) as log:
        read_decoded(log)  # compiles
        for _ in range(rounds):
            console.log(comparison.add_round(read_reference(log), read_decoded(log, tls=True)))
    return comparison
