"""Shapes whose rows are read through a real pooler in transaction mode: no session there is ours.

PgBouncer comes in no wheel: it is the machine's own, or fetched from Debian's archive (`tests/debian.py`). On
another system without it, only forwarders of the tests' own stand in for it (`test_check`), which show what
it refuses and not what it does.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.core.errors import SourceError
from penstock.sources.postgres.connection import connect
from tests.conftest import Database
from tests.pooler import Pooler, pooled
from tests.serving import ShapeServer, followed, rows, synced

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
]


@pytest.fixture
def pool(database: Database) -> Iterator[Pooler]:
    with pooled(database) as pooler:
        yield pooler


def test_shapes_through_a_pooler_are_their_tables(database: Database, tmp_path: Path, pool: Pooler) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY, part int, at timestamptz, amount float8)")
    database.execute(
        "INSERT INTO items SELECT i, i % 40, '2026-01-31 12:00+00', i / 7.0 FROM generate_series(1, 4000) i"
    )
    # What text looks like is settled by each transaction: the pooler's sessions have other ideas.
    database.execute(
        f"ALTER DATABASE {database.name} SET TimeZone = 'Asia/Tokyo';"
        f"ALTER DATABASE {database.name} SET DateStyle = 'SQL, MDY';"
        f"ALTER DATABASE {database.name} SET extra_float_digits = 0"
    )
    environment = {"ELECTRIC_POOLED_DATABASE_URL": pool.url}
    before = pool.logins()
    with ShapeServer(database.url, tmp_path / "shapes", environment=environment) as server:
        server.wait_until_active()
        with ThreadPoolExecutor(20) as clients:
            parts = list(
                clients.map(lambda part: synced(server, table="items", where=f"part = {part}"), range(40))
            )
        last, messages = synced(server, table="items")
        database.execute("UPDATE items SET amount = 0.1 + 0.2, at = now() WHERE part = 7")
        database.execute("INSERT INTO items VALUES (0, 7, now(), 1e300)")
        messages += followed(server, last, "0", table="items")
        of_seven = [*parts[7][1], *followed(server, parts[7][0], "0", table="items", where="part = 7")]
    with database.connect(options="-c TimeZone=UTC -c DateStyle=ISO -c extra_float_digits=1") as source:
        wanted = source.execute("SELECT id::text, part::text, at::text, amount::text FROM items").fetchall()
    assert sorted(tuple(row.values()) for row in rows(messages).values()) == sorted(wanted)
    assert sorted(tuple(row.values()) for row in rows(of_seven).values()) == sorted(
        row for row in wanted if row[1] == "7"
    )
    assert pool.logins() > before, "rows came through it"
    assert [len(rows(messages)) for _, messages in parts] == [100] * 40


def test_subsets_come_through_a_pooler(database: Database, tmp_path: Path, pool: Pooler) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY, note text)")
    database.execute("INSERT INTO items SELECT i, 'note ' || i FROM generate_series(1, 50) AS i")
    environment = {"ELECTRIC_POOLED_DATABASE_URL": pool.url}
    with ShapeServer(database.url, tmp_path / "shapes", environment=environment) as server:
        server.wait_until_active()
        for offset in range(0, 50, 10):
            subset = {"subset__order_by": "id", "subset__limit": "10", "subset__offset": str(offset)}
            answer = server.get(table="items", offset="-1", log="changes_only", **subset)
            assert answer.status == 200, answer.body
            found = [message["value"]["id"] for message in answer.json()["data"]]
            assert found == [str(number) for number in range(offset + 1, offset + 11)]


def test_changes_are_not_asked_of_a_pooler(pool: Pooler) -> None:
    for replication in (False, True):
        with pytest.raises(SourceError, match="pooler"):
            connect(pool.url, replication=replication)
