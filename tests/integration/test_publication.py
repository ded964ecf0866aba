"""The publication is brought to what is asked, or refused with nothing changed."""

from __future__ import annotations

import threading

import psycopg
import pytest

from penstock.core.errors import SourceError
from penstock.core.stream import StreamId
from penstock.sources.postgres import publication as publication_module
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.publication import PublicationManager, PublicationMode, read_publication
from tests.conftest import Database, wait_until

pytestmark = pytest.mark.integration

PARTITIONED = (
    "CREATE TABLE parts (id int, k int, PRIMARY KEY (id, k)) PARTITION BY LIST (k);"
    "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES IN (1);"
    "CREATE TABLE parts_2 PARTITION OF parts FOR VALUES IN (2) PARTITION BY LIST (k);"
    "CREATE TABLE parts_2a PARTITION OF parts_2 FOR VALUES IN (2);"
)


def ensure(
    database: Database,
    *streams: str,
    full: tuple[str, ...] = (),
    mode: PublicationMode = "auto",
    url: str | None = None,
    slot: str | None = None,
) -> list[str]:
    with connect(url or database.url) as connection:
        manager = PublicationManager(connection, "pen stock", mode, slot)
        added = manager.ensure(
            [StreamId.parse(stream) for stream in streams], {StreamId.parse(stream) for stream in full}
        )
    return [str(stream) for stream in added]


def lacking(database: Database, *streams: str) -> list[SourceError]:
    with connect(database.url) as connection:
        manager = PublicationManager(connection, "pen stock")
        return manager.lacking([StreamId.parse(stream) for stream in streams])


def published(database: Database) -> set[str]:
    rows = database.query("SELECT tablename FROM pg_publication_tables WHERE pubname = 'pen stock'")
    return {name for (name,) in rows}


def identities(database: Database) -> dict[str, str]:
    rows = database.query(
        "SELECT relname, relreplident::text FROM pg_class "
        "WHERE relkind IN ('r', 'p') AND relnamespace = 'public'::regnamespace"
    )
    return dict(rows)


def test_a_missing_publication_is_created_whole_and_only_what_is_new_is_reported(database: Database) -> None:
    database.execute('CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE "B b" (id int PRIMARY KEY)')
    assert ensure(database, "public.a") == ["public.a"]
    assert ensure(database, "public.a", "public.B b") == ["public.B b"]
    assert ensure(database, "public.a", "public.B b") == []
    assert published(database) == {"a", "B b"}
    with connect(database.url) as connection:
        info = read_publication(connection, "pen stock")
    assert info is not None
    assert info.operations == {"insert", "update", "delete", "truncate"}
    assert (info.via_root, info.all_tables) == (False, False)


def test_a_table_that_is_no_longer_asked_for_stays_in(database: Database) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    ensure(database, "public.a", "public.b")
    ensure(database, "public.a")
    assert published(database) == {"a", "b"}


def test_a_slot_without_its_publication_is_an_error_and_nothing_is_created(database: Database) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    slot = f"slot_{database.name}"
    database.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    with pytest.raises(SourceError, match="is missing, but the replication slot") as raised:
        ensure(database, "public.a", slot=slot)
    assert "resync --yes" in raised.value.remedy
    assert database.query("SELECT * FROM pg_publication") == []


def test_a_table_without_identity_is_refused_before_anything_changes(database: Database) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE keyless (id int)")
    with pytest.raises(SourceError, match="no replica identity") as raised:
        ensure(database, "public.a", "public.keyless")
    assert raised.value.stream == "public.keyless"
    assert "replica_identity: full" in raised.value.remedy
    assert database.query("SELECT * FROM pg_publication") == []
    database.execute("INSERT INTO keyless VALUES (1); UPDATE keyless SET id = 2")  # the application goes on


def test_full_identity_is_set_on_every_leaf_and_only_where_asked(database: Database) -> None:
    database.execute(PARTITIONED + "CREATE TABLE keyless (id int); CREATE TABLE a (id int PRIMARY KEY)")
    added = ensure(
        database, "public.parts", "public.keyless", "public.a", full=("public.parts", "public.keyless")
    )
    assert added == ["public.parts", "public.keyless", "public.a"]
    assert published(database) == {"parts_1", "parts_2a", "keyless", "a"}
    found = identities(database)
    assert {name for name, identity in found.items() if identity == "f"} == {"parts_1", "parts_2a", "keyless"}


def test_a_new_leaf_gets_the_identity_at_the_next_call(database: Database) -> None:
    database.execute(PARTITIONED)
    ensure(database, "public.parts", full=("public.parts",))
    database.execute("CREATE TABLE parts_3 PARTITION OF parts FOR VALUES IN (3)")
    assert identities(database)["parts_3"] == "d"
    assert ensure(database, "public.parts", full=("public.parts",)) == []
    assert identities(database)["parts_3"] == "f"
    assert published(database) == {"parts_1", "parts_2a", "parts_3"}


def test_children_by_inheritance_are_not_published_with_their_parent(database: Database) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE child () INHERITS (a)")
    ensure(database, "public.a")
    assert published(database) == {"a"}
    database.execute("INSERT INTO child VALUES (1); UPDATE child SET id = 2")


@pytest.mark.parametrize(
    ("definition", "message", "remedy"),
    [
        ("FOR TABLE a WHERE (id > 5)", "a row filter", "DROP TABLE"),
        ("FOR TABLE a (id)", "a column list", "DROP TABLE"),
        ("FOR TABLE a WITH (publish = 'insert, update')", "leaves out delete, truncate", "SET (publish"),
        ("FOR TABLE a WITH (publish_via_partition_root = true)", "as their root", "via_partition_root"),
    ],
)
def test_a_publication_that_hides_changes_is_refused(
    database: Database, definition: str, message: str, remedy: str
) -> None:
    database.execute(
        f'CREATE TABLE a (id int PRIMARY KEY, n int); CREATE PUBLICATION "pen stock" {definition}'
    )
    with pytest.raises(SourceError, match=message) as raised:
        ensure(database, "public.a")
    assert remedy in raised.value.remedy


def test_a_publication_for_all_tables_needs_no_adding(database: Database) -> None:
    database.execute('CREATE TABLE a (id int PRIMARY KEY); CREATE PUBLICATION "pen stock" FOR ALL TABLES')
    assert ensure(database, "public.a") == []


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ("CREATE VIEW a AS SELECT 1 AS id", "a view"),
        ("CREATE UNLOGGED TABLE a (id int PRIMARY KEY)", "unlogged"),
        ("SELECT 1", "no such table"),
    ],
)
def test_what_leaves_no_log_is_refused_by_name(database: Database, definition: str, message: str) -> None:
    database.execute(definition)
    with pytest.raises(SourceError, match=message) as raised:
        ensure(database, "public.a")
    assert raised.value.stream == "public.a"
    assert raised.value.remedy


def test_manual_mode_changes_nothing_and_says_what_to_run(database: Database) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE keyless (id int)")
    statements = []
    for _ in range(2):
        with pytest.raises(SourceError, match="managed by hand") as raised:
            ensure(database, "public.a", "public.keyless", full=("public.keyless",), mode="manual")
        assert raised.value.remedy.startswith("Run: ")
        statements.append(raised.value.remedy.removeprefix("Run: "))
        database.execute(statements[-1])
    assert statements[0].startswith('CREATE PUBLICATION "pen stock"')
    assert ensure(database, "public.a", "public.keyless", full=("public.keyless",), mode="manual") == []
    assert published(database) == {"a", "keyless"}


def test_a_role_that_does_not_own_the_table_is_told_who_does(database: Database) -> None:
    role, url = database.create_role()
    database.execute(
        f"CREATE TABLE a (id int PRIMARY KEY); GRANT CREATE ON DATABASE {database.name} TO {role}"
    )
    with pytest.raises(SourceError, match="owner") as raised:
        ensure(database, "public.a", url=url)
    assert "Run as postgres" in raised.value.remedy
    database.execute(f'DROP PUBLICATION "pen stock"; REVOKE CREATE ON DATABASE {database.name} FROM {role}')
    with pytest.raises(SourceError, match="may not create"):
        ensure(database, "public.a", url=url)


def test_a_locked_table_is_waited_for_in_short_turns(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publication_module, "LOCK_TIMEOUT_MS", 50)
    monkeypatch.setattr(publication_module, "LOCK_PAUSE_S", 0.05)
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    with database.connect(autocommit=False) as holder:
        holder.execute("LOCK TABLE a IN SHARE ROW EXCLUSIVE MODE")
        with pytest.raises(SourceError, match="could not be locked"):
            ensure(database, "public.a")
        assert published(database) == set()
        monkeypatch.setattr(publication_module, "LOCK_ATTEMPTS", 1000)
        added: list[str] = []
        waiting = threading.Thread(target=lambda: added.extend(ensure(database, "public.a")))
        waiting.start()
        wait_until(lambda: _someone_waits(database), "the manager to wait for the lock")
        holder.rollback()
        waiting.join()
    assert added == ["public.a"]


def _someone_waits(database: Database) -> bool:
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = %s"
    return database.query(query, (database.name,)) != [(0,)]


def test_drop_removes_the_publication_and_nothing_else(database: Database) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE PUBLICATION other FOR TABLE a")
    ensure(database, "public.a")
    with connect(database.url) as connection:
        manager = PublicationManager(connection, "pen stock")
        assert manager.drop() is True
        assert manager.drop() is False
    assert database.query("SELECT pubname FROM pg_publication") == [("other",)]


def test_a_keyless_table_in_a_publication_breaks_updates_of_the_application(database: Database) -> None:
    """The trap itself, as Postgres has it (correctness 30)."""
    database.execute("CREATE TABLE keyless (id int); CREATE PUBLICATION other FOR TABLE keyless")
    database.execute("INSERT INTO keyless VALUES (1)")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        database.execute("UPDATE keyless SET id = 2")


GENERATED = "CREATE TABLE g (id int PRIMARY KEY, n int, twice int GENERATED ALWAYS AS (n * 2) STORED)"


def publishes_generated(database: Database) -> bool:
    ((stored,),) = database.query("SELECT pubgencols = 's' FROM pg_publication WHERE pubname = 'pen stock'")
    return bool(stored)


def test_an_unpublished_generated_column_in_old_rows_breaks_updates_of_the_application(
    database: Database,
) -> None:
    """The trap itself, from Postgres 18 on; and one of virtual columns that nothing helps against."""
    database.execute(f"{GENERATED}; INSERT INTO g VALUES (1, 1); ALTER TABLE g REPLICA IDENTITY FULL")
    database.execute("CREATE PUBLICATION other FOR TABLE g")
    with pytest.raises(psycopg.errors.InvalidColumnReference):
        database.execute("UPDATE g SET n = 2")
    database.execute("ALTER PUBLICATION other SET (publish_generated_columns = stored)")
    database.execute("UPDATE g SET n = 2; ALTER TABLE g ADD v int GENERATED ALWAYS AS (n) VIRTUAL")
    with pytest.raises(psycopg.errors.InvalidColumnReference):
        database.execute("UPDATE g SET n = 3")


@pytest.mark.parametrize("exists", [False, True])
def test_stored_generated_columns_are_published_so_that_the_application_goes_on(
    database: Database, exists: bool
) -> None:
    database.execute(f"{GENERATED}; INSERT INTO g VALUES (1, 1); CREATE TABLE a (id int PRIMARY KEY)")
    if exists:
        database.execute('CREATE PUBLICATION "pen stock" FOR TABLE a')
    assert ensure(database, "public.g", full=("public.g",)) == ["public.g"]
    assert publishes_generated(database)
    database.execute("UPDATE g SET n = 2; DELETE FROM g")
    # A column that comes to a table that is followed already must find it so.
    database.execute('ALTER PUBLICATION "pen stock" SET (publish_generated_columns = none)')
    assert ensure(database, "public.a") == ([] if exists else ["public.a"])
    assert publishes_generated(database)


def test_a_publication_that_is_not_ours_to_change_and_lacks_generated_columns_says_of_which_tables(
    database: Database,
) -> None:
    _, url = database.create_role()
    database.execute(f"{GENERATED}; CREATE TABLE a (id int PRIMARY KEY)")
    database.execute('CREATE PUBLICATION "pen stock" FOR TABLE g, a')
    statement = ""
    for mode, at in (("manual", None), ("auto", url)):
        assert ensure(database, "public.a", "public.g", mode=mode, url=at) == []  # type: ignore[arg-type]
        assert not publishes_generated(database)
        [error] = lacking(database, "public.a", "public.g")
        assert error.stream == "public.g"
        assert "leaves out generated columns" in error.message
        statement = error.remedy.removeprefix("As the publication's owner run: ").removesuffix(".")
    database.execute(statement)
    assert lacking(database, "public.a", "public.g") == []
    assert ensure(database, "public.a", "public.g", mode="manual") == []


def test_whole_old_rows_are_not_asked_for_where_our_publication_lacks_generated_columns(
    database: Database,
) -> None:
    """Its owner is somebody else, the table's is our role: then UPDATE would fail in the application."""
    role, url = database.create_role()
    database.execute(f"{GENERATED}; INSERT INTO g VALUES (1, 1); ALTER TABLE g OWNER TO {role}")
    database.execute('CREATE PUBLICATION "pen stock" FOR TABLE g')
    with pytest.raises(SourceError, match="leaves out generated columns") as raised:
        ensure(database, "public.g", full=("public.g",), url=url)
    assert raised.value.stream == "public.g"
    assert identities(database) == {"g": "d"}
    database.execute("UPDATE g SET n = 2")


def test_whole_old_rows_are_not_asked_for_where_another_publication_leaves_generated_columns_out(
    database: Database,
) -> None:
    database.execute(f"{GENERATED}; INSERT INTO g VALUES (1, 1); CREATE PUBLICATION other FOR TABLE g")
    with pytest.raises(SourceError, match="publication other leaves out") as raised:
        ensure(database, "public.g", full=("public.g",))
    assert raised.value.stream == "public.g"
    assert identities(database) == {"g": "d"}
    assert ensure(database, "public.g") == ["public.g"], "its key is no generated column"
    database.execute("UPDATE g SET n = 2")
    database.execute("ALTER PUBLICATION other SET (publish_generated_columns = stored)")
    assert ensure(database, "public.g", full=("public.g",)) == []
    database.execute("UPDATE g SET n = 3; DELETE FROM g")


def test_a_table_with_virtual_columns_is_published_by_its_key_alone(database: Database) -> None:
    database.execute("CREATE TABLE v (id int PRIMARY KEY, n int, w int GENERATED ALWAYS AS (n) VIRTUAL)")
    database.execute("INSERT INTO v VALUES (1, 1)")
    with pytest.raises(SourceError, match="virtual generated columns") as raised:
        ensure(database, "public.v", full=("public.v",))
    assert raised.value.stream == "public.v"
    assert identities(database) == {"v": "d"}
    assert database.query("SELECT * FROM pg_publication") == []
    assert ensure(database, "public.v") == ["public.v"]
    database.execute("UPDATE v SET n = 2; DELETE FROM v")
