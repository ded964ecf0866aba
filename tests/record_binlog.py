"""`python -m tests.record_binlog`: record binary logs of real servers as fixtures of unit tests.

A recording is the events of a short history, whole and without checksums, and beside them what the servers
themselves showed for the rows of the last statement. Written anew only when the history below changes: the
files are as small as it is.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import closing
from pathlib import Path

from penstock.sources.mysql.binlog.event_kernels import HEARTBEAT
from penstock.sources.mysql.binlog.packet_kernels import TYPE_AT
from penstock.sources.mysql.binlog.stream import BinlogStream, FilePosition
from tests.binlog_reading import SERVER_ID, collations_of
from tests.conftest import wait_until
from tests.mysql_server import MARIADB, MYSQL, Kind, MysqlServer

FIXTURES = Path(__file__).parent / "fixtures" / "binlog"
_COMPRESSED = {
    MYSQL.name: ("SET binlog_transaction_compression = ON", "SET binlog_transaction_compression = OFF"),
    MARIADB.name: ("SET GLOBAL log_bin_compress = ON", "SET GLOBAL log_bin_compress = OFF"),
}
_CHARSETS = ("utf8mb4", "latin1", "binary")
_TABLE = (
    "CREATE TABLE mixed (id BIGINT UNSIGNED PRIMARY KEY, amount DECIMAL(12,3), at DATETIME(3), "
    "name VARCHAR(40), kind ENUM('small', 'large') CHARACTER SET latin1, data VARBINARY(300), document JSON)"
)


def _history(kind: Kind) -> tuple[str, ...]:
    on, off = _COMPRESSED[kind.name]
    return (
        _TABLE,
        "INSERT INTO mixed VALUES "
        "(18446744073709551615, -12.5, '2024-02-29 23:59:59.5', 'é', 'small', x'00ff', '[1]')",
        "BEGIN",
        "INSERT INTO mixed (id) VALUES (1), (2)",
        "UPDATE mixed SET name = 'ü', document = '{\"a\": 2}' WHERE id = 1",
        "DELETE FROM mixed WHERE id = 2",
        "COMMIT",
        "FLUSH BINARY LOGS",
        on,
        "INSERT INTO mixed VALUES (3, 1, NULL, REPEAT('x', 40), 'large', REPEAT(x'01', 300), 'null')",
        off,
        "SET binlog_row_image = MINIMAL",
        "UPDATE mixed SET amount = 7 WHERE id = 3",
        "ALTER TABLE mixed DROP COLUMN data",
        "INSERT INTO mixed (id, name) VALUES (4, 'last')",
    )


def record(kind: Kind, directory: Path) -> None:
    with MysqlServer(directory, kind, ["--log-bin-compress-min-len=10"] if kind is MARIADB else []) as server:
        server.execute("CREATE DATABASE shop CHARACTER SET utf8mb4")
        start = FilePosition(*server.position())
        with server.connect("shop") as connection, connection.cursor() as cursor:
            for statement in _history(kind):
                cursor.execute(statement)
        events: list[bytes] = []
        with closing(BinlogStream(server.connect(), start, SERVER_ID, heartbeat_s=0.5)) as stream:

            def idle() -> bool:
                batch = stream.read(1.0)
                if batch is not None:
                    events.extend(batch.event(number) for number in range(len(batch)))
                return bool(events) and events[-1][TYPE_AT] == HEARTBEAT

            wait_until(idle, "a heartbeat behind the last event")
        shown = server.rows(
            "SELECT CAST(id AS CHAR), CAST(amount AS CHAR), CAST(at AS CHAR), name, CAST(kind AS CHAR), "
            "CAST(document AS CHAR) FROM shop.mixed ORDER BY id"
        )
        collations = sorted(collations_of(server).items())
        recording = {
            "server": server.rows("SELECT VERSION()")[0][0],
            "collations": {str(number): name for number, name in collations if name in _CHARSETS},
            "shown": shown,
            "events": [event.hex() for event in events if event[TYPE_AT] != HEARTBEAT],
        }
    (FIXTURES / f"{kind.name}.json").write_text(json.dumps(recording, ensure_ascii=False, indent=0) + "\n")


def main() -> None:
    FIXTURES.mkdir(parents=True, exist_ok=True)
    for kind in (MYSQL, MARIADB):
        with tempfile.TemporaryDirectory() as directory:
            record(kind, Path(directory) / kind.name)


if __name__ == "__main__":
    main()
