"""Taking over from OLake, on a real slot: what carries on has every change once, the rest is loaded anew."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock import Pipeline
from penstock.cli.main import app
from penstock.core.errors import PositionGoneError, SourceError, StateError
from tests.conftest import Database
from tests.pipelines import PipelineUnderTest
from tests.traps import MakePipeline, assert_exact

STRICT: list[Any] = [
    {"table": "public.state", "mode": "strict_cdc"},
    {"table": "public.history", "mode": "strict_cdc", "write": "append"},
]


@dataclass
class Predecessor:
    """A slot and a publication as OLake leaves them: read up to `position`, acknowledged not so far."""

    database: Database
    pipeline: PipelineUnderTest
    position: str

    def file(self, **changes: Any) -> Path:
        state = {"lsn": self.position, **changes}
        names = ["public.state", "public.history"]
        entries = [
            {"stream": name[7:], "namespace": "public", "sync_mode": "cdc", "state": {"chunks": []}}
            for name in names
        ]
        path = self.pipeline.directory / "olake-state.json"
        document = {"type": "GLOBAL", "global": {"state": state, "streams": names}, "streams": entries}
        path.write_text(json.dumps(document))
        return path

    def migrate(self, **changes: Any) -> dict[str, str]:
        told = Pipeline.from_yaml(self.pipeline.file).migrate(self.file(**changes))
        return {each.stream: each.action for each in told}


def write(database: Database, first: int, value: str) -> None:
    for table in ("state", "history"):
        database.execute(f"INSERT INTO {table} VALUES ({first}, '{value}')")


def position(database: Database) -> str:
    [(found,)] = database.query("SELECT pg_current_wal_insert_lsn()::text")
    return str(found)


def advance(database: Database, slot: str, to: str) -> None:
    database.query("SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", (slot, to))


def predecessor(tables: Database, pipeline: PipelineUnderTest) -> Predecessor:
    tables.execute(f"CREATE PUBLICATION {pipeline.name} FOR TABLE state, history")
    tables.query(f"SELECT pg_create_logical_replication_slot('{pipeline.name}', 'pgoutput')")
    write(tables, 100, "acknowledged")
    advance(tables, pipeline.name, position(tables))
    write(tables, 101, "in its tables, not acknowledged")
    return Predecessor(tables, pipeline, position(tables))


def test_a_strict_stream_carries_on_where_the_other_table_ends(tables: Database, make: MakePipeline) -> None:
    pipeline = make(STRICT)
    before = predecessor(tables, pipeline)
    write(tables, 102, "after its last sync")
    assert before.migrate() == {"public.state": "carries on", "public.history": "carries on"}
    write(tables, 103, "after the migration")
    pipeline.sync()
    write(tables, 104, "later")
    tables.execute("UPDATE state SET v = 'changed' WHERE id = 100; DELETE FROM history WHERE id = 100")
    pipeline.sync()
    opened = Pipeline.from_yaml(pipeline.file)
    state = Counter((row["id"], row["v"]) for row in opened.table("public.state").to_arrow().to_pylist())
    later = [(102, "after its last sync"), (103, "after the migration"), (104, "later")]
    assert state == Counter([*later, (100, "changed")])
    history = opened.table("public.history").to_arrow().to_pylist()
    assert Counter((row["_op"], row["id"]) for row in history) == Counter(
        [("i", 102), ("i", 103), ("i", 104), ("d", 100)]
    )


def test_every_other_stream_is_loaded_anew_under_the_same_slot(tables: Database, make: MakePipeline) -> None:
    pipeline = make(["public.state", {"table": "public.history", "write": "append"}])
    before = predecessor(tables, pipeline)
    write(tables, 102, "after its last sync")
    assert set(before.migrate().values()) == {"is loaded anew"}
    pipeline.sync()
    write(tables, 103, "later")
    pipeline.sync()
    assert_exact(pipeline)


def test_what_cannot_be_exact_is_refused_and_changes_nothing(tables: Database, make: MakePipeline) -> None:
    pipeline = make(STRICT)
    before = predecessor(tables, pipeline)
    with pytest.raises(StateError, match="in the middle of a round") as in_doubt:
        before.migrate(next_cdc_pos="0/7FFFFFFF", processing=["public.history"])
    assert in_doubt.value.stream == "public.history"
    tables.execute(f"ALTER PUBLICATION {pipeline.name} DROP TABLE state")
    with pytest.raises(SourceError, match="does not have this table"):
        before.migrate()
    tables.execute(f"ALTER PUBLICATION {pipeline.name} ADD TABLE state")
    write(tables, 102, "seen by somebody else")
    advance(tables, pipeline.name, position(tables))
    with pytest.raises(PositionGoneError, match="no longer kept"):
        before.migrate()
    broken = pipeline.directory / "broken.json"
    broken.write_text('{"global": ')
    with pytest.raises(StateError, match=r"broken\.json cannot be read"):
        Pipeline.from_yaml(pipeline.file).migrate(broken)
    assert not (pipeline.state / "state.json").exists()


def test_the_command_says_what_becomes_of_each_stream(tables: Database, make: MakePipeline) -> None:
    pipeline = make([STRICT[0]])
    before = predecessor(tables, pipeline)
    catalog = pipeline.directory / "streams.json"
    selected = [{"stream_name": name, "append_mode": True} for name in ("state", "gone")]
    catalog.write_text(json.dumps({"selected_streams": {"public": selected}}))
    arguments = ["--from", str(before.file()), "--streams", str(catalog)]
    command = ["-c", str(pipeline.file), "--json", "state", "migrate", *arguments]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    told = {each["stream"]: (each["action"], each["detail"]) for each in json.loads(result.stdout)["streams"]}
    assert told["public.state"][0] == "carries on"
    assert "`append` there, `upsert` here" in told["public.state"][1]
    assert told["public.history"][0] == told["public.gone"][0] == "is left out"
    assert CliRunner().invoke(app, command).exit_code == StateError.exit_code, "there is a state now"
