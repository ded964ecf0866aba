"""The check names every obstacle, each with its remedy, and no obstacle hides another."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.core.stream import StreamId
from penstock.sources.postgres.check import Finding, StreamNeed, check
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.embedded import EmbeddedPostgres
from penstock.sources.postgres.publication import PublicationMode
from penstock.sources.postgres.slots import create_slot
from tests.conftest import Database, with_password

pytestmark = pytest.mark.integration


def need(stream: str, **fields: str) -> StreamNeed:
    return StreamNeed(StreamId.parse(stream), **fields)  # type: ignore[arg-type]


def run(
    database: Database, *needs: StreamNeed, url: str | None = None, mode: PublicationMode = "auto"
) -> list[Finding]:
    slot = f"slot_{database.name}"
    findings = check(url or database.url, slot, "penstock", needs, publication_mode=mode)
    for finding in findings:
        assert finding.message
        assert finding.level == "ok" or finding.remedy, finding
    return findings


def problems(findings: list[Finding], level: str = "error") -> dict[str, Finding]:
    return {finding.name: finding for finding in findings if finding.level == level}


def test_a_source_that_has_everything_gets_no_warning(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    findings = run(database, need("public.t"))
    assert {finding.level for finding in findings} == {"ok"}
    assert [finding.name for finding in findings if finding.stream] == ["table"]


def test_nothing_is_changed_by_a_check(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    run(database, need("public.t", replica_identity="full"))
    assert database.query("SELECT * FROM pg_publication") == []
    assert database.query("SELECT relreplident::text FROM pg_class WHERE relname = 't'") == [("d",)]
    query = "SELECT * FROM pg_replication_slots WHERE database = %s"
    assert database.query(query, (database.name,)) == []


def test_a_server_that_refuses_us_gives_one_finding(database: Database) -> None:
    findings = run(database, need("public.t"), url=with_password(database.url, "wrong-one"))
    assert [(finding.name, finding.level) for finding in findings] == [("connection", "error")]
    assert "wrong-one" not in str(findings)


def test_one_obstacle_does_not_hide_the_others(database: Database) -> None:
    role, url = database.create_role()
    database.execute(
        "CREATE TABLE keyless (id int); CREATE TABLE guarded (id int PRIMARY KEY);"
        f"ALTER TABLE guarded ENABLE ROW LEVEL SECURITY; GRANT SELECT ON guarded TO {role}"
    )
    findings = run(database, need("public.keyless"), need("public.guarded"), need("public.no"), url=url)
    found = {(finding.name, finding.stream) for finding in findings if finding.level == "error"}
    assert found == {
        ("replication privilege", None),
        ("publication", None),
        ("select privilege", "public.keyless"),
        ("primary key", "public.keyless"),
        ("replica identity", "public.keyless"),
        ("publication content", "public.keyless"),
        ("row security", "public.guarded"),
        ("publication content", "public.guarded"),
        ("table", "public.no"),
    }


def test_a_role_that_may_not_emit_messages_is_told_what_grants_it(database: Database) -> None:
    role, url = database.create_role("LOGIN REPLICATION")
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    assert "messages of ours" not in problems(run(database, need("public.t"), url=url))
    [(function,)] = database.query(
        "SELECT oid::regprocedure::text FROM pg_proc "
        "WHERE proname = 'pg_logical_emit_message' AND proargtypes[2] = 'text'::regtype"
    )
    database.execute(f"REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC")
    found = problems(run(database, need("public.t"), url=url))
    assert role in found["messages of ours"].message
    database.execute(found["messages of ours"].remedy.removeprefix("As a superuser run: "))
    assert "messages of ours" not in problems(run(database, need("public.t"), url=url))


def test_a_full_refresh_needs_neither_log_nor_key(database: Database) -> None:
    role, url = database.create_role()
    database.execute(
        f"CREATE UNLOGGED TABLE t (id int); CREATE VIEW v AS SELECT 1 AS id;GRANT SELECT ON t, v TO {role}"
    )
    findings = run(
        database, need("public.t", mode="full_refresh"), need("public.v", mode="full_refresh"), url=url
    )
    assert {finding.level for finding in findings} == {"ok"}


def test_wal_level_and_full_slots_and_senders_are_named() -> None:
    with EmbeddedPostgres(settings={"wal_level": "replica", "max_replication_slots": "0"}) as server:
        findings = check(server.url(), "penstock", "penstock", [need("public.t")])
        found = problems(findings)
        assert set(found) == {"wal_level", "replication slots", "table"}
        assert "ALTER SYSTEM SET wal_level" in found["wal_level"].remedy
        server.restart({"wal_level": "logical", "max_replication_slots": "1", "max_wal_senders": "1"})
        findings = check(server.url(), "penstock", "penstock", [need("public.t")])
        assert set(problems(findings)) == {"table"}
        assert set(problems(findings, "warning")) == {"replication slots", "replication senders"}
        with connect(server.url(), replication=True):
            findings = check(server.url(), "penstock", "penstock", [need("public.t")])
            assert {"replication privilege", "replication senders"} <= set(problems(findings))
            assert "max_wal_senders" in problems(findings)["replication privilege"].remedy


def test_a_standby_is_refused() -> None:
    with EmbeddedPostgres() as primary, EmbeddedPostgres.standby_of(primary) as standby:
        findings = check(standby.url(), "penstock", "penstock", [need("public.t")])
        assert "standby" in problems(findings)["primary server"].message


def test_a_slot_without_its_publication_is_an_error(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with connect(database.url, replication=True) as replication:
        create_slot(replication, f"slot_{database.name}")
    found = problems(run(database, need("public.t")))
    assert "changes made in between would be skipped" in found["publication"].message


def test_slots_of_another_kind_or_in_use_are_named(database: Database) -> None:
    name = f"slot_{database.name}"
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION penstock FOR TABLE t")
    with connect(database.url, replication=True) as replication:
        create_slot(replication, name, temporary=True)
        pid = replication.info.backend_pid
        assert f"process {pid}" in problems(run(database, need("public.t")), "warning")["slot"].message
    database.execute(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput', false, true)")
    assert "two_phase" in problems(run(database, need("public.t")))["slot"].message
    database.execute(f"SELECT pg_drop_replication_slot('{name}')")
    database.execute(f"SELECT pg_create_logical_replication_slot('{name}', 'test_decoding')")
    assert "test_decoding" in problems(run(database, need("public.t")))["slot"].message


@pytest.mark.parametrize(
    ("definition", "name", "words"),
    [
        ("FOR TABLE t WHERE (id > 5)", "publication content", "row filter"),
        ("FOR TABLE t (id)", "publication content", "column list"),
        ("FOR TABLE t WITH (publish = 'insert')", "publication operations", "delete, truncate, update"),
        ("FOR TABLE t WITH (publish_via_partition_root = true)", "publication partitions", "root"),
    ],
)
def test_a_publication_that_hides_changes_is_named(
    database: Database, definition: str, name: str, words: str
) -> None:
    database.execute(f"CREATE TABLE t (id int PRIMARY KEY, n int); CREATE PUBLICATION penstock {definition}")
    found = problems(run(database, need("public.t")))
    assert set(found) == {name}
    assert words in found[name].message


def test_a_publication_by_hand_must_hold_every_stream(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    assert set(problems(run(database, need("public.t"), mode="manual"))) == {
        "publication",
        "publication content",
    }
    database.execute("CREATE PUBLICATION penstock")
    assert set(problems(run(database, need("public.t"), mode="manual"))) == {"publication content"}
    assert not problems(run(database, need("public.t"), mode="auto"))
    database.execute("ALTER PUBLICATION penstock ADD TABLE t")
    assert not problems(run(database, need("public.t"), mode="manual"))


def test_a_publication_for_all_tables_is_fine_and_said(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION penstock FOR ALL TABLES")
    findings = run(database, need("public.t"))
    assert not problems(findings)
    assert any("FOR ALL TABLES" in finding.message for finding in findings)


def test_kinds_of_tables_that_leave_no_log_are_named(database: Database) -> None:
    database.execute(
        "CREATE EXTENSION file_fdw; CREATE SERVER files FOREIGN DATA WRAPPER file_fdw;"
        "CREATE FOREIGN TABLE outside (line text) SERVER files OPTIONS (filename '/dev/null');"
        "CREATE UNLOGGED TABLE fleeting (id int PRIMARY KEY); CREATE VIEW seen AS SELECT 1 AS id;"
        "CREATE TABLE parts (line text) PARTITION BY LIST (line);"
        "CREATE FOREIGN TABLE part PARTITION OF parts FOR VALUES IN ('x') SERVER files"
        " OPTIONS (filename '/dev/null')"
    )
    streams = ("outside", "fleeting", "seen", "parts")
    findings = run(database, *(need(f"public.{stream}", write="append") for stream in streams))
    kinds = {finding.stream: finding.message for finding in findings if finding.name == "table kind"}
    words = ("a foreign table", "an unlogged table", "a view", "foreign partitions")
    assert len(kinds) == len(streams)
    for stream, word in zip(streams, words, strict=True):
        assert word in kinds[f"public.{stream}"]


def test_a_wildcard_leaves_out_what_has_no_log_and_says_so(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE UNLOGGED TABLE fleeting (id int)")
    findings = run(database, need("public.*"), need("nowhere.*"))
    warned = {finding.stream for finding in findings if finding.level == "warning"}
    assert warned == {"public.fleeting", "nowhere.*"}
    assert not problems(findings)


@pytest.mark.parametrize(
    ("definition", "words"),
    [
        ("CREATE TABLE t (id int NOT NULL UNIQUE)", "no primary key and no other"),
        ("CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t REPLICA IDENTITY NOTHING", "NOTHING"),
        ("CREATE TABLE t (id int PRIMARY KEY DEFERRABLE)", "deferrable"),
    ],
)
def test_a_missing_identity_is_named_with_its_cause_and_mended_by_full(
    database: Database, definition: str, words: str
) -> None:
    database.execute(definition)
    found = problems(run(database, need("public.t", write="append")))
    assert words in found["replica identity"].message
    assert "replica_identity: full" in found["replica identity"].remedy
    assert not problems(run(database, need("public.t", write="append", replica_identity="full")))


def test_full_identity_needs_the_owner(database: Database) -> None:
    role, url = database.create_role("LOGIN REPLICATION")
    database.execute(
        f"CREATE TABLE t (id int PRIMARY KEY); GRANT SELECT ON t TO {role};"
        "CREATE PUBLICATION penstock FOR TABLE t"
    )
    assert not problems(run(database, need("public.t"), url=url))
    found = problems(run(database, need("public.t", replica_identity="full"), url=url))
    assert set(found) == {"replica identity"}
    assert "As postgres run: ALTER TABLE" in found["replica identity"].remedy


def test_an_upsert_table_without_a_key_is_named(database: Database) -> None:
    database.execute("CREATE TABLE t (id int); ALTER TABLE t REPLICA IDENTITY FULL")
    assert set(problems(run(database, need("public.t")))) == {"primary key"}
    assert not problems(run(database, need("public.t", write="append")))


def test_columns_named_like_ours_are_an_error_until_renamed(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, _op text, _deleted_at text)")
    assert not problems(run(database, need("public.t")))
    found = problems(run(database, need("public.t", write="append")))
    assert "rename" in found["column names"].remedy
    assert "column names" in problems(run(database, need("public.t", deletes="soft")))
    renamed = StreamNeed(
        StreamId.parse("public.t"), write="append", rename={"_op": "operation", "_deleted_at": "gone"}
    )
    assert not problems(run(database, renamed))


def test_generated_columns_that_are_left_out_are_warned_about(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) VIRTUAL)")
    findings = run(database, need("public.t"))
    assert "twice" in problems(findings, "warning")["generated columns"].message
    assert not problems(findings)
    whole = problems(run(database, need("public.t", replica_identity="full")))
    assert "virtual generated columns (twice)" in whole["replica identity"].message


def test_a_publication_by_hand_must_publish_generated_columns(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED)")
    database.execute("CREATE PUBLICATION penstock FOR TABLE t")
    assert not problems(run(database, need("public.t")))  # the next sync does it
    found = problems(run(database, need("public.t"), mode="manual"))
    assert "publish_generated_columns = stored" in found["publication content"].remedy
    database.execute("ALTER PUBLICATION penstock SET (publish_generated_columns = stored)")
    assert not problems(run(database, need("public.t"), mode="manual"))


def test_row_security_matters_only_to_roles_it_applies_to(database: Database) -> None:
    role, url = database.create_role("LOGIN REPLICATION")
    database.execute(
        f"CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t ENABLE ROW LEVEL SECURITY;"
        f"CREATE PUBLICATION penstock FOR TABLE t; GRANT SELECT ON t TO {role}"
    )
    assert set(problems(run(database, need("public.t"), url=url))) == {"row security"}
    database.execute(f"ALTER ROLE {role} BYPASSRLS")
    assert not problems(run(database, need("public.t"), url=url))


def test_a_partition_without_the_right_to_read_is_named(database: Database) -> None:
    role, url = database.create_role("LOGIN REPLICATION")
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY LIST (id);"
        "CREATE TABLE t_1 PARTITION OF t FOR VALUES IN (1);"
        f"CREATE PUBLICATION penstock FOR TABLE t; GRANT SELECT ON t TO {role}"
    )
    found = problems(run(database, need("public.t"), url=url))
    assert set(found) == {"select privilege"}
    assert '"t_1"' in found["select privilege"].remedy


# -- a pooler in between: a forwarder in front of the real server that does what PgBouncer does -------


@contextmanager
def pooler(server: EmbeddedPostgres, *, drops_options: bool, own_process_id: bool) -> Iterator[int]:
    """Forwards connections; leaves out start-up options, or announces a process id of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    client, _ = listening.accept()
                except OSError:
                    return
                upstream = socket.create_connection(("127.0.0.1", server.port))
                threading.Thread(target=to_server, args=(client, upstream), daemon=True).start()
                threading.Thread(target=to_client, args=(upstream, client), daemon=True).start()

        def to_server(client: socket.socket, upstream: socket.socket) -> None:
            (length,) = struct.unpack("!I", exactly(client, 4))
            fields = exactly(client, length - 4)[4:].rstrip(b"\0").split(b"\0")
            pairs = zip(fields[0::2], fields[1::2], strict=True)
            kept = [(name, value) for name, value in pairs if not (drops_options and name == b"options")]
            body = struct.pack("!I", 196608) + b"".join(n + b"\0" + v + b"\0" for n, v in kept) + b"\0"
            upstream.sendall(struct.pack("!I", len(body) + 4) + body)
            copy(client, upstream)

        def to_client(upstream: socket.socket, client: socket.socket) -> None:
            while own_process_id:
                kind, length = struct.unpack("!cI", exactly(upstream, 5))
                body = exactly(upstream, length - 4)
                if kind == b"K":
                    body = struct.pack("!I", 1_000_000_007) + body[4:]
                client.sendall(kind + struct.pack("!I", length) + body)
                if kind == b"Z":
                    break
            copy(upstream, client)

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)  # closing alone would not wake `accept`


def exactly(source: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = source.recv(count - len(data))
        if not part:
            raise SystemExit
        data += part
    return data


def copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


@pytest.mark.parametrize(
    ("drops_options", "own_process_id"),
    [(True, False), (False, True)],
    ids=["options ignored", "other process"],
)
def test_a_pooler_in_between_is_detected(
    database: Database, drops_options: bool, own_process_id: bool
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with pooler(database.server, drops_options=drops_options, own_process_id=own_process_id) as port:
        url = (
            database.url.replace(f":{database.server.port}/", f":{port}/")
            + "?sslmode=disable&gssencmode=disable"
        )
        found = problems(run(database, need("public.t"), url=url))
    assert "pooler" in found["connection"].message
    assert "Postgres itself" in found["connection"].remedy
