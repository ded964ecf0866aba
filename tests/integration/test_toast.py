"""Large values that the source does not send again, under every replica identity.

The table in docs/guarantees.md says what comes out; these tests are that table.
"""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Pipeline
from penstock.core.errors import SourceError
from tests.conftest import Database
from tests.pipelines import PipelineUnderTest
from tests.traps import MakePipeline

pytestmark = pytest.mark.integration

#: 4,000 characters that do not compress: they lie outside of the row.
BIG = "(SELECT string_agg(md5(n::text || %s), '') FROM generate_series(1, 125) n)"


def big(seed: str) -> str:
    return BIG.replace("%s", f"'{seed}'")


TABLE = f"""
CREATE TABLE %s (id int NOT NULL PRIMARY KEY, code int NOT NULL, small text, large text, larger text);
CREATE UNIQUE INDEX %s_code ON %s (code);
INSERT INTO %s SELECT n, n + 1000, 'v', {big("a")} || n, {big("b")} || n FROM generate_series(1, 20) n;
"""
#: Each identity, and the statement that gives it to a table.
IDENTITIES = {
    "default": "ALTER TABLE %s REPLICA IDENTITY DEFAULT",
    "full": "ALTER TABLE %s REPLICA IDENTITY FULL",
    "index": "ALTER TABLE %s REPLICA IDENTITY USING INDEX %s_code",
}
CHANGES = (
    "UPDATE %s SET small = 'once' WHERE id = 1",
    "UPDATE %s SET small = 'twice' WHERE id = 2; UPDATE %s SET small = 'two times' WHERE id = 2",
    f"UPDATE %s SET large = {big('c')} WHERE id = 3; UPDATE %s SET small = 'after' WHERE id = 3",
    "UPDATE %s SET larger = NULL WHERE id = 4; UPDATE %s SET small = NULL WHERE id = 4",
    "UPDATE %s SET id = 105 WHERE id = 5",
    "UPDATE %s SET code = 106 WHERE id = 6",
    "UPDATE %s SET id = 107, code = 107, small = 'm' WHERE id = 7; UPDATE %s SET small = 'x' WHERE id = 107",
    f"INSERT INTO %s VALUES (30, 30, 'new', {big('d')}, NULL); UPDATE %s SET small = 'newer' WHERE id = 30",
    "DELETE FROM %s WHERE id = 8; UPDATE %s SET id = 8 WHERE id = 9",
    f"UPDATE %s SET large = {big('e')} WHERE id = 10; UPDATE %s SET id = 110 WHERE id = 10",
)


@pytest.mark.parametrize("identity", IDENTITIES)
def test_large_values_that_were_not_sent_again_are_right_under_every_identity(
    database: Database, make: MakePipeline, identity: str
) -> None:
    for table in ("state", "history"):
        database.execute(TABLE.replace("%s", table))
        database.execute(IDENTITIES[identity].replace("%s", table))
    pipeline = make(["public.state", {"table": "public.history", "write": "append"}])
    pipeline.sync()
    for change in CHANGES:
        database.execute(change.replace("%s", "state"))
        database.execute(change.replace("%s", "history"))
    pipeline.sync()
    pipeline.assert_same("public.state")
    database.execute("UPDATE state SET small = small || '!'; UPDATE history SET small = small || '!'")
    pipeline.sync()
    pipeline.assert_same("public.state")
    assert_history_says_what_was_not_sent(pipeline, identity)


def assert_history_says_what_was_not_sent(pipeline: PipelineUnderTest, identity: str) -> None:
    """Not sent is null and listed; with the whole old row, capture fills it in and nothing is listed."""
    rows: list[dict[str, Any]] = (
        Pipeline.from_yaml(pipeline.file).table("public.history").to_arrow().to_pylist()
    )
    updates = [row for row in rows if row["_op"] == "u"]
    assert updates
    assert any(row["_unchanged"] for row in updates) == (identity != "full")
    for row in updates:
        for name in row["_unchanged"] or ():
            assert row[name] is None, "a value that was not sent is null, and said to be"
    if identity == "full":
        last = {row["id"]: row for row in updates}
        assert all(row["large"] is not None for row in last.values())


def test_a_key_that_is_itself_large_names_its_row(database: Database, make: MakePipeline) -> None:
    """Stored outside of the row, a key is not in the new row of an update; the log has it as the old key."""
    database.execute("CREATE TABLE state (k text PRIMARY KEY, v text, filler text)")
    database.execute("ALTER TABLE state ALTER k SET STORAGE EXTERNAL")
    database.execute(
        f"INSERT INTO state SELECT left({big('k')}, 2400) || n, 'v', repeat('x', 300) "
        "FROM generate_series(1, 9) n"
    )
    pipeline = make(["public.state"])
    pipeline.sync()
    database.execute("UPDATE state SET v = 'w' WHERE k LIKE '%3'; DELETE FROM state WHERE k LIKE '%4'")
    database.execute("UPDATE state SET k = k || 'moved' WHERE k LIKE '%5'")
    pipeline.sync()
    pipeline.assert_same("public.state")


def test_without_an_identity_a_table_is_refused_before_it_is_published(
    database: Database, make: MakePipeline
) -> None:
    database.execute(TABLE.replace("%s", "state"))
    database.execute("ALTER TABLE state REPLICA IDENTITY NOTHING")
    pipeline = make(["public.state"])
    with pytest.raises(SourceError, match="UPDATE and DELETE would fail") as refused:
        pipeline.sync()
    assert "replica_identity: full" in refused.value.remedy
    database.execute("UPDATE state SET small = 'still works' WHERE id = 1")
    pipeline.streams = [{"table": "public.state", "replica_identity": "full"}]
    pipeline.write_file()
    pipeline.sync()
    database.execute("UPDATE state SET small = 'followed' WHERE id = 2")
    pipeline.sync()
    pipeline.assert_same("public.state")
