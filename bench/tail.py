"""The live tail: what readers cost capture, and what the way from capture to a lane takes.

Throughput: an always-on capture with one, and with three, readers in processes of their own that follow the
tail and keep nothing, against `pg_recvlogical`, over copies of one slot. Penstock's time runs from the answer
to `join`, which has the slot read, until everything is sealed in the log and every reader has every row;
starting the processes is not part of it.

By the log: a reader that comes when all is sealed and the tail has let go of it, and has the log to read; the
measure is a bare read of the same files, in the same process. In CPU-seconds, decoding included.

Hop: single-row transactions every few milliseconds; from the moment when capture has one whole to the moment
when a lane has it in its hands. The measure is a Flight server that sends the time, at the same pace. Both
take turns, round by round; the bar is for the median of the rounds' quotients, at p50 and at p99.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import pyarrow.parquet as pq
from pyarrow import flight
from rich.console import Console

from bench import bare_flight, capture
from bench.comparison import Bars, Comparison, Figure, Run
from bench.references import ReceiveLogical
from bench.resources import Usage
from penstock.capture.remote import RemoteCapture
from penstock.capture.source_spec import PostgresSpec
from penstock.capture.spec import CaptureSpec, ServiceSpec
from penstock.capture.tail_items import Transactions
from penstock.capture.tail_reader import TailReader
from penstock.core.position import Lsn
from penstock.log.reader import ChangeLog
from penstock.sources.postgres.embedded import EmbeddedPostgres

BARS = {1: Bars(ratio_min=0.9), 3: Bars(ratio_min=0.8)}
HOP_RATIO_MAX = 3.0
HOPS = 2000
_WARM_UP_HOPS = 200
_HOP_PERCENTILES = {"p50": 50, "p99": 99}
_TAIL_BYTES, _TAIL_THAT_KEEPS_LITTLE = 64 << 20, 1 << 20
_SLOT_FORMAT = "tail_{readers}_{number}"


def compare(
    server: EmbeddedPostgres, rows: int, rounds: int, directory: Path, console: Console
) -> tuple[list[Comparison], list[Figure]]:
    console.log(f"inserting {rows:,} rows behind a slot")
    source = capture.Measured(server, rows)
    reference = ReceiveLogical(server, source.connection, "penstock")
    compared = [
        Comparison("tail", f"capture of {rows:,} rows with {_readers(count)}", reference.name, bars)
        for count, bars in BARS.items()
    ]
    console.log("tail: a warm-up round, not counted")
    for number in range(rounds + 1):
        slot = source.copy_slot(f"receive_tail_{number}")
        theirs = reference.read(slot, source.end, rows)
        source.drop_slot(slot)
        for comparison, readers in zip(compared, BARS, strict=True):
            slot = source.copy_slot(_SLOT_FORMAT.format(readers=readers, number=number))
            ours = _capture(server, source, slot, readers, directory / slot, console)
            source.drop_slot(slot)
            if number:
                console.log(comparison.add_round(theirs, ours))
    figures = [
        _by_log(server, source, directory, console),
        *_hops(server, source, rounds, directory, console),
    ]
    source.drop()
    return compared, figures


def _capture(
    server: EmbeddedPostgres,
    source: capture.Measured,
    slot: str,
    readers: int,
    directory: Path,
    console: Console,
) -> Run:
    end = Lsn.parse(source.end)
    with ExitStack() as stack:
        lane, pid = stack.enter_context(_running(server, slot, directory))
        command = [sys.executable, "-m", "bench.tail_reader", lane.address, str(directory / "log"), str(end)]
        following = [stack.enter_context(_started(command)) for _ in range(readers)]
        process = psutil.Process(pid)
        started = lane.join([capture.STREAM])
        before, began = process.cpu_times(), time.perf_counter()
        for reader in following:
            _say(reader, str(started.log_end or started.slot_position))
        lane.read_to(end)
        lane.reached()
        given = [_line(reader).split() for reader in following]
        seconds = time.perf_counter() - began
        after = process.cpu_times()
        peak = round(capture.peak_mib(pid) * 2**20)
    assert [int(rows) for rows, _ in given] == [source.rows] * readers, "every reader has every row once"
    by_log = sum(int(rows) for _, rows in given) / (source.rows * readers)
    console.log(f"tail: {_readers(readers)}, {by_log:.0%} of the rows by the log")
    return Run(source.rows, Usage(seconds, after.user + after.system - before.user - before.system, peak))


def _by_log(server: EmbeddedPostgres, source: capture.Measured, directory: Path, console: Console) -> Figure:
    end, slot = Lsn.parse(source.end), source.copy_slot("tail_by_log")
    log = directory / slot / "log"
    with _running(server, slot, directory / slot, tail_bytes_max=_TAIL_THAT_KEEPS_LITTLE) as (lane, _):
        started = lane.join([capture.STREAM])
        lane.read_to(end)
        lane.reached()
        after = started.log_end or started.slot_position
        began = time.process_time()
        rows = by_log = 0
        for found in TailReader(lane, log).follow(after):
            given = sum(piece.rows.num_rows for piece in found.pieces)
            rows += given
            by_log += given if found.at is None else 0
            if found.end >= end:
                break
        ours = (time.process_time() - began) / rows
    source.drop_slot(slot)
    assert rows == source.rows, "every row once"
    assert by_log > 0.9 * rows, "the reader was sent to the log, which is what is measured here"
    files = ChangeLog(log).files(capture.STREAM, after, end).files
    began = time.process_time()
    bare_rows = sum(batch.num_rows for file in files for batch in pq.ParquetFile(file.path).iter_batches())
    bare = (time.process_time() - began) / bare_rows
    assert bare_rows == rows, "the same rows"
    console.log(
        f"tail: {by_log / rows:.0%} of the rows by the log, {ours * 1e6:.2f} CPU-s per million rows; "
        f"a bare read of its files {bare * 1e6:.2f}"
    )
    title = "reader that falls back to the log ÷ bare read of its files, CPU per row"
    return Figure(title, ours / bare, None)


def _hops(
    server: EmbeddedPostgres, source: capture.Measured, rounds: int, directory: Path, console: Console
) -> list[Figure]:
    """The median of the quotients of rounds, of some seconds of bare hops and as many of ours each: at p99
    one alone says mostly what else the machine did meanwhile."""
    quotients = []
    for number in range(1, rounds + 1):
        bare = _percentiles(_bare_hops())
        ours = _percentiles(_own_hops(server, source, number, directory))
        quotients.append(ours / bare)
        for name, own, theirs in zip(_HOP_PERCENTILES, ours, bare, strict=True):
            console.log(
                f"hop {name}, round {number}: bare Flight {theirs:.2f} ms, capture to lane {own:.2f} ms: "
                f"quotient {own / theirs:.2f}"
            )
    return [
        Figure(f"hop capture → lane, {name}, ÷ bare Flight hop", value, HOP_RATIO_MAX)
        for name, value in zip(_HOP_PERCENTILES, np.median(quotients, axis=0), strict=True)
    ]


def _own_hops(
    server: EmbeddedPostgres, source: capture.Measured, number: int, directory: Path
) -> list[float]:
    slot = f"tail_hops_{number}"
    source.connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    with _running(server, slot, directory / slot) as (lane, _):
        hops = _tail_hops(source, lane, first_id=-number * HOPS)
    source.drop_slot(slot)
    return hops


def _bare_hops() -> list[float]:
    with tempfile.TemporaryDirectory() as directory:
        address = f"grpc+unix://{directory}/bare"
        command = [sys.executable, "-m", "bench.bare_flight", address, str(HOPS)]
        with _started(command), flight.connect(address) as client:
            reader = client.do_get(flight.Ticket(b""))
            return [time.time() - chunk.data.column(0)[0].as_py() for chunk in reader]


def _tail_hops(source: capture.Measured, lane: RemoteCapture, first_id: int) -> list[float]:
    started = lane.join([capture.STREAM])
    items = lane.tail(started.log_end or started.slot_position)
    next(items)
    writing = threading.Thread(target=_write_slowly, args=(source, first_id), daemon=True)
    writing.start()
    hops: list[float] = []
    rows = 0
    while rows < HOPS:
        found = next(items)
        now = time.time()
        if isinstance(found, Transactions) and found.pieces and found.at is not None:
            hops.append(now - found.at)
            rows += sum(piece.rows.num_rows for piece in found.pieces)
    writing.join()
    return hops


def _write_slowly(source: capture.Measured, first_id: int) -> None:
    for key in range(first_id, first_id + HOPS):
        time.sleep(bare_flight.EVERY_S)
        source.connection.execute("INSERT INTO measured (id) VALUES (%s)", (key,))


def _percentiles(hops_s: Sequence[float]) -> npt.NDArray[np.float64]:
    """Median and 99th, in milliseconds."""
    wanted = list(_HOP_PERCENTILES.values())
    found: npt.NDArray[np.float64] = np.percentile(np.array(hops_s[_WARM_UP_HOPS:]) * 1000, wanted)
    return found


@contextmanager
def _running(
    server: EmbeddedPostgres, slot: str, directory: Path, *, tail_bytes_max: int = _TAIL_BYTES
) -> Iterator[tuple[RemoteCapture, int]]:
    """An always-on capture that leads, and its process id."""
    with tempfile.TemporaryDirectory() as sockets:
        spec = CaptureSpec(
            source=PostgresSpec(server.url(), slot, "penstock"),
            log_directory=directory / "log",
            checkpoint_path=directory / "checkpoint.json",
            lanes_path=directory / "lanes.json",
            step_bytes_max=16 << 20,
            tail_bytes_max=tail_bytes_max,
            service=ServiceSpec(f"grpc+unix://{sockets}/capture"),
        )
        command = [sys.executable, "-m", "penstock.capture"]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        ) as process:
            _say(process, json.dumps(spec.to_json()))
            with RemoteCapture(f"grpc+unix://{sockets}/capture", "bench") as lane:
                lane.wait_until_leading(threading.Event())
                yield lane, process.pid
            process.kill()


@contextmanager
def _started(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A program that says "ready"; it is ended with the block."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(list(command), env=os.environ, **pipes) as process:
        assert _line(process) == "ready"
        yield process
        process.kill()


def _say(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _readers(count: int) -> str:
    return "one tail reader" if count == 1 else f"{count} tail readers"
