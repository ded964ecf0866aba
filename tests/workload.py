"""Writers that do to a database what applications do, while a pipeline follows it.

The transactions of a writer are drawn from `seed` and its number alone: a run is repeated by its seed, but
for the interleaving of writers. Every row they write carries a fresh `version`, so that no two changes of a
row look alike: a lost, doubled or swapped one cannot hide.

What they do: inserts, updates, deletes, key changes, delete and re-insertion of a key in one transaction and
across two, transactions over several tables, rollbacks, savepoints rolled back, updates that leave a TOASTed
value as it is (also together with a key change), rows that move between partitions, and TRUNCATE. Most keys
belong to one writer; a few are fought over by all.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Self

import psycopg

from tests.oracle import OPTIONS
from tests.oracle_history import install_audit
from tests.workload_writer import Writer
from tests.writers import Writers

#: Streams with the way they are written to the destination.
UPSERT = ("public.orders", "public.documents", "public.readings", "public.scratch")
APPEND = ("public.events", "public.signals")

SCHEMA = """
CREATE TABLE orders (id bigint PRIMARY KEY, customer integer NOT NULL, amount numeric(12,2), note text,
    placed_at timestamptz NOT NULL DEFAULT clock_timestamp(), detail jsonb, paid boolean,
    version bigint NOT NULL);
CREATE TABLE documents (id integer PRIMARY KEY, title text, body text, version bigint NOT NULL);
ALTER TABLE documents ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE TABLE events (id uuid PRIMARY KEY, order_id bigint, kind text, payload jsonb,
    at timestamptz DEFAULT clock_timestamp(), score double precision, version bigint NOT NULL);
CREATE TABLE readings (id bigint, region text, value double precision, day date, version bigint NOT NULL,
    PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE readings_eu PARTITION OF readings FOR VALUES IN ('eu');
CREATE TABLE readings_us PARTITION OF readings FOR VALUES IN ('us', 'ca');
CREATE TABLE readings_other PARTITION OF readings DEFAULT;
CREATE TABLE scratch (id integer PRIMARY KEY, word text, version bigint NOT NULL);
CREATE TABLE signals (id integer PRIMARY KEY, level smallint, body text, version bigint NOT NULL);
ALTER TABLE signals ALTER COLUMN body SET STORAGE EXTERNAL;
"""
INITIAL_ROWS: Sequence[str] = (
    "INSERT INTO orders SELECT n, n %% 500, (random() * 1e6)::numeric(12,2), 'order ' || n, "
    "'2026-01-01'::timestamptz + n * interval '1.0001 second', jsonb_build_object('n', n), n %% 3 = 0, n "
    "FROM generate_series(1, %(rows)s) n",
    "INSERT INTO documents SELECT n, 'title ' || n, repeat(md5(n::text), 300), n "
    "FROM generate_series(1, %(few)s) n",
    "INSERT INTO events SELECT gen_random_uuid(), n, 'loaded', '{\"n\": 1}', clock_timestamp(), random(), n "
    "FROM generate_series(1, %(rows)s) n",
    "INSERT INTO readings SELECT n, (ARRAY['eu', 'us', 'ca', 'jp', 'br'])[n %% 5 + 1], random(), "
    "'2026-01-01', n FROM generate_series(1, %(rows)s) n",
    "INSERT INTO scratch SELECT n, 'word', n FROM generate_series(1, 20) n",
    "INSERT INTO signals SELECT n, n, repeat(md5(n::text), 300), n FROM generate_series(1, 20) n",
)


class Workload(Writers):
    """Writers on one database."""

    def __init__(
        self, url: str, seed: int | None = None, *, pause_s: float = 0.01, append_heavy: bool = False
    ) -> None:
        super().__init__(pause_s)
        self.url = url
        self.seed = random.SystemRandom().randrange(10**6) if seed is None else seed
        self._append_heavy = append_heavy
        self._writers: list[Writer] = []
        print(f"workload seed {self.seed}")

    def setup(self, rows: int = 1000, audited: Sequence[str] = APPEND) -> Self:
        """The tables, `rows` orders and about as many rows in the others, and the audit."""
        with psycopg.connect(self.url, options=OPTIONS, autocommit=True) as connection:
            connection.execute(SCHEMA.encode())
            install_audit(self.url, audited)
            connection.execute("SELECT setseed(%s)", ((self.seed % 1000) / 1000,))
            for statement in INITIAL_ROWS:
                connection.execute(statement.encode(), {"rows": rows, "few": max(rows // 20, 20)})
            connection.execute("ANALYZE")
        return self

    def start(self, writers: int = 2) -> Self:
        """Write until `stop`; started again, each writer goes on where it was."""
        self._have(writers)
        return self.begin(writers)

    def run(self, transactions: int, writer: int = 0) -> None:
        """Make this many transactions here and now, by one writer."""
        self._have(writer + 1)
        with self.connected() as connection:
            for _ in range(transactions):
                self._writers[writer].transact(connection)

    @property
    def writers(self) -> list[Writer]:
        return self._writers

    def connected(self) -> psycopg.Connection:
        return psycopg.connect(self.url, options=OPTIONS, autocommit=True)

    def _have(self, writers: int) -> None:
        while len(self._writers) < writers:
            self._writers.append(Writer(self.seed, len(self._writers), self._append_heavy))
