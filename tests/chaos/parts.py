"""Streams that hold a part of their table: the rows of a condition, or what happened since a start.

Their tables repeat what the workload does to its own, by triggers in its own transactions: `orders` in
`chosen` and `since`, `events` in `told` and `heard`. Of `told` the source keeps the rows inside the condition
in one more table, so that rows that move in and out have a history there of their own. Nothing here knows how
Penstock filters, or where it lets a table begin.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import psycopg

from tests.oracle import OPTIONS, assert_same
from tests.oracle_history import (
    assert_append_is_history,
    assert_changes_since,
    assert_rows_since,
    audit_end,
    install_audit,
)
from tests.pipelines import PipelineUnderTest

CHOSEN = "paid AND customer < 400"
TOLD = "version % 2 = 0"
#: Every update turns `paid` over and draws another `version`: rows come into either part and leave it.
FILTERED: list[Any] = [
    {"table": "public.chosen", "where": CHOSEN, "columns": ["id", "customer", "note", "version"]},
    {
        "table": "public.told",
        "where": TOLD,
        "columns": ["id", "kind", "version"],
        "write": "append",
        "replica_identity": "full",
    },
]
STRICT: list[Any] = [
    {"table": "public.since", "mode": "strict_cdc"},
    {"table": "public.heard", "mode": "strict_cdc", "write": "append"},
]
STREAMS = [*FILTERED, *STRICT]

_TABLES = f"""
CREATE TABLE chosen (LIKE orders INCLUDING ALL); INSERT INTO chosen TABLE orders;
CREATE TABLE since (LIKE orders INCLUDING ALL); INSERT INTO since TABLE orders;
CREATE TABLE told (LIKE events INCLUDING ALL); INSERT INTO told TABLE events;
CREATE TABLE heard (LIKE events INCLUDING ALL); INSERT INTO heard TABLE events;
CREATE VIEW chosen_part AS SELECT id, customer, note, version FROM chosen WHERE {CHOSEN};
CREATE TABLE told_part (id uuid PRIMARY KEY, kind text, version bigint NOT NULL);
"""
_INSIDE = f"INSERT INTO told_part SELECT id, kind, version FROM told WHERE {TOLD}"
_ORDERS = ("id", "customer", "amount", "note", "placed_at", "detail", "paid", "version")
_EVENTS = ("id", "order_id", "kind", "payload", "at", "score", "version")
_ALL = "{row}.id IS NOT NULL"
_MIRRORS = (
    ("orders", "chosen", _ORDERS, _ALL),
    ("orders", "since", _ORDERS, _ALL),
    ("events", "told", _EVENTS, _ALL),
    ("events", "heard", _EVENTS, _ALL),
    ("told", "told_part", ("id", "kind", "version"), "{row}.version % 2 = 0"),
)
_MIRROR = """
CREATE FUNCTION mirror_{to}() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE was_inside boolean := coalesce({old_inside}, false);
DECLARE is_inside boolean := coalesce({new_inside}, false);
BEGIN
    IF was_inside AND is_inside THEN
        UPDATE {to} SET ({columns}) = ROW({new}) WHERE id = OLD.id;
    ELSIF was_inside THEN
        DELETE FROM {to} WHERE id = OLD.id;
    ELSIF is_inside THEN
        INSERT INTO {to} ({columns}) VALUES ({new});
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER mirror_{to} AFTER INSERT OR UPDATE OR DELETE ON {of}
    FOR EACH ROW EXECUTE FUNCTION mirror_{to}();
"""


def _mirror(of: str, to: str, columns: tuple[str, ...], inside: str) -> str:
    return _MIRROR.format(
        of=of,
        to=to,
        columns=", ".join(columns),
        new=", ".join(f"NEW.{name}" for name in columns),
        old_inside=inside.format(row="OLD"),
        new_inside=inside.format(row="NEW"),
    )


@dataclass
class Parts:
    """On a database that has the workload's tables and the audit."""

    url: str
    #: By the name of a pipeline: changes up to the first number came before it began, those after the second
    #: when it had begun.
    _began: dict[str, tuple[int, int | None]] = field(default_factory=dict)

    def setup(self) -> None:
        """While nobody writes."""
        with psycopg.connect(self.url, options=OPTIONS, autocommit=True) as connection:
            connection.execute(_TABLES.encode())
            install_audit(self.url, ["public.since", "public.heard", "public.told_part"])
            for mirror in _MIRRORS:
                connection.execute(_mirror(*mirror).encode())
            connection.execute(
                f"INSERT INTO told_part SELECT id, kind, version FROM told WHERE {TOLD}".encode()
            )

    def is_about_to_begin(self, pipeline: PipelineUnderTest) -> None:
        """While nobody writes, before its first sync."""
        self._began[pipeline.name] = audit_end(self.url), None

    def compare(self, pipeline: PipelineUnderTest) -> None:
        """While nobody writes, and when it has caught up."""
        before, begun = self._began[pipeline.name]
        begun = self._now_at_the_latest(pipeline, before, begun)
        assert_same(self.url, "public.chosen_part", pipeline.path("public.chosen"))
        assert_append_is_history(self.url, "public.told_part", pipeline.path("public.told"))
        assert_rows_since(self.url, "public.since", pipeline.path("public.since"), before, begun)
        assert_changes_since(self.url, "public.heard", pipeline.path("public.heard"), before, begun)

    def _now_at_the_latest(self, pipeline: PipelineUnderTest, before: int, begun: int | None) -> int:
        if begun is None:
            begun = audit_end(self.url)
            self._began[pipeline.name] = before, begun
        return begun
