"""First syncs: one large shape against COPY, and many clients at once.

One shape of 1 M rows: from the request that creates it until the client has the last row, against
`COPY (SELECT to_json(t) …) TO STDOUT` by psql to /dev/null on one connection, in rounds. The shape is deleted
after each, so that every round makes its snapshot anew.

1,000 clients at once, each over its own connection and all from one process with an event loop, until the
last of them is up to date: of one shape of 500 rows that is not there before, and of 1,000 shapes of 500 rows
each. The seconds are those of the slowest client.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlencode

from rich.console import Console

from bench.comparison import Bars, Comparison, Figure, Run
from bench.references import JsonCopy
from bench.resources import measured
from bench.shapes_service import HOST, Service, ShapeClient, serving
from bench.workload import Connection, create_table, insert_rows
from penstock.sources.postgres.embedded import EmbeddedPostgres

ROWS = 1_000_000
CLIENTS, CLIENT_ROWS = 1_000, 500
BARS = Bars(ratio_min=0.5)
_DATABASE = "shapes_sync"


def compare(
    server: EmbeddedPostgres, rounds: int, directory: Path, console: Console
) -> tuple[Comparison, list[Figure]]:
    reference = JsonCopy(server, _DATABASE)
    comparison = Comparison("shapes-sync", f"first sync of {ROWS:,} rows", reference.name, BARS)
    with serving(server, _DATABASE, directory) as service, service.connect() as connection:
        create_table(connection, "large")
        insert_rows(connection, "large", 1, ROWS)
        connection.execute("VACUUM ANALYZE large")
        console.log("shapes-sync: a warm-up round, not counted")
        for number in range(rounds + 1):
            theirs = reference.load("large", ROWS)
            ours = _first_sync(service)
            if number:
                console.log(comparison.add_round(theirs, ours))
        figures = _at_once(service, connection, console)
    return comparison, figures


def _first_sync(service: Service) -> Run:
    client = ShapeClient(service.port, {"table": "large"})
    with measured(service.pid) as meter:
        rows = client.sync()
    assert rows == ROWS, "every row came once"
    client.delete()
    client.close()
    return Run(rows, meter.usage)


def _at_once(service: Service, connection: Connection, console: Console) -> list[Figure]:
    connection.execute("CREATE TABLE small (id bigint PRIMARY KEY, project bigint, title text)")
    connection.execute(
        "INSERT INTO small SELECT i, (i - 1) / %s, md5(i::text) FROM generate_series(1, %s) AS i",
        (CLIENT_ROWS, CLIENTS * CLIENT_ROWS),
    )
    connection.execute("CREATE INDEX ON small (project)")
    connection.execute("VACUUM ANALYZE small")
    one = {"table": "small", "where": f"id <= {CLIENT_ROWS}"}
    each = [{"table": "small", "where": f"project = {number}"} for number in range(CLIENTS)]
    figures = []
    for name, parameters in (("one shape", [one] * CLIENTS), ("a shape each", each)):
        seconds = asyncio.run(_sync_all(service.port, parameters))
        figures.append(
            Figure(f"{CLIENTS:,} first syncs of {CLIENT_ROWS} rows at once, {name}", seconds, 5, "s")
        )
        console.log(f"{figures[-1].title}: {figures[-1]}")
    return figures


async def _sync_all(port: int, parameters: Sequence[dict[str, str]]) -> float:
    started = time.perf_counter()
    rows = await asyncio.gather(*(_sync(port, each) for each in parameters))
    seconds = time.perf_counter() - started
    assert rows == [CLIENT_ROWS] * len(parameters), "every client has every row once"
    return seconds


async def _sync(port: int, parameters: dict[str, str]) -> int:
    reader, writer = await asyncio.open_connection(HOST, port)
    position, rows = {"offset": "-1"}, 0
    while True:
        path = "/v1/shape?" + urlencode({**parameters, **position})
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        headers, body = await read_answer(reader)
        rows += body.count(b'"operation":"insert"')
        if "electric-up-to-date" in headers:
            writer.close()
            return rows
        position = {"offset": headers["electric-offset"], "handle": headers["electric-handle"]}


async def read_answer(reader: asyncio.StreamReader) -> tuple[dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    status, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if "chunked" in headers.get("transfer-encoding", ""):
        body = bytearray()
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readexactly(2)
    else:
        body = bytearray(await reader.readexactly(int(headers.get("content-length", "0"))))
    if " 200 " not in f"{status} ":
        raise RuntimeError(f"{status}: {bytes(body[:500]).decode(errors='replace')}")
    return headers, bytes(body)
