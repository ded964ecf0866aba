"""`penstock state rewind`: from where on it can be done, what the state says of it, what a crash leaves."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.main import main
from penstock.core.place import Place
from penstock.core.position import Lsn
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.ledger import orders, pausing, rewinding, two_phase
from penstock.ledger.orders import Order
from penstock.ledger.state import Chunk, Rewind, StateDocument, StreamState
from penstock.ledger.state_check import problems
from penstock.ledger.store import StateStore
from penstock.log.manifest import SCHEMA_DIRECTORY, FileEntry, Manifest, TableEntry, manifest_path

ITEMS = StreamId("public", "items")
PIPELINE = """\
source: {type: postgres, url: "postgresql://app@db/shop"}
destination: {type: parquet, path: ./lake}
state: ./state
streams:
  - public.items
  - {table: public.history, write: append}
  - {table: public.whole, mode: full_refresh}
  - {table: public.later, mode: incremental, cursor: id}
"""
COLUMNS = (
    SourceColumn("id", 23, -1, "int4", "integer", 1),
    SourceColumn("v", 25, -1, "text", "text", 2),
)
SCHEMA = TableSchema(ITEMS, COLUMNS, ("id",))
WIDER = replace(SCHEMA, columns=(*COLUMNS, SourceColumn("w", 25, -1, "text", "text", 3)))
OTHER = replace(SCHEMA, columns=(COLUMNS[0], SourceColumn("v", 23, -1, "int4", "integer", 2)))


def loaded(
    stream: StreamId = ITEMS, at: int = 100, *, document: StateDocument | None = None
) -> StateDocument:
    """A stream that was loaded at a position, and shares it."""
    document = document or StateDocument.new("p")
    document = two_phase.plan_load(
        document,
        stream,
        sync_mode="cdc",
        load_id="load",
        generation="first",
        chunks=[Chunk(None, None)],
    )
    document = two_phase.load_done(document, stream, Lsn(at))
    return two_phase.join_global(document, stream)


def followed(to: int = 400) -> StateDocument:
    """Its table is at `to`, the others' changes go to 0x200."""
    document = two_phase.prepare_round(loaded(), Lsn(to), [ITEMS])
    document = two_phase.finish_round(two_phase.stream_committed(document, ITEMS, Lsn(to)))
    return two_phase.finish_round(two_phase.prepare_round(document, Lsn(0x200), []))


def state_of(document: StateDocument) -> StreamState:
    state = document.stream(ITEMS)
    assert state is not None
    return state


# What the state says


def test_of_two_wishes_the_earlier_position_counts() -> None:
    document = rewinding.asked(rewinding.asked(followed(), ITEMS, Lsn(200)), ITEMS, Lsn(300))
    assert state_of(document).rewind == Rewind(Lsn(200))
    assert problems(document) == []
    assert rewinding.asked(followed(), StreamId("public", "unknown"), Lsn(200)) == followed()


def test_a_rewind_moves_no_position_and_holds_nobody() -> None:
    before = followed()
    after = rewinding.prepared(rewinding.asked(before, ITEMS, Lsn(200)), ITEMS, "second")
    after = rewinding.done(after, ITEMS, Lsn(200))
    assert state_of(after) == replace(state_of(before), generation="second", load_generation="second")
    assert (after.lsn, after.global_streams) == (before.lsn, before.global_streams)


class CrashError(Exception):
    pass


@dataclass
class World:
    """What survives a crash: the state, and generation and start of the table's marker."""

    document: StateDocument
    table: tuple[str, Lsn | None] = ("first", None)
    commits: int = 0
    steps_left: int = 0

    def carry_out(self) -> None:
        self.document = rewinding.recovered(self.document, ITEMS, *self.table)
        if state_of(self.document).rewind is None:
            return
        self._step()
        self.document = rewinding.prepared(self.document, ITEMS, "second")
        self._step()
        self.table, self.commits = ("second", Lsn(200)), self.commits + 1
        self._step()
        self.document = rewinding.done(self.document, ITEMS, Lsn(200))

    def _step(self) -> None:
        self.steps_left -= 1
        if self.steps_left == 0:
            raise CrashError


@pytest.mark.parametrize("crash", [1, 2, 3])
def test_cut_short_before_any_durable_step_it_is_done_once(crash: int) -> None:
    world = World(rewinding.asked(followed(), ITEMS, Lsn(200)), steps_left=crash)
    with pytest.raises(CrashError):
        world.carry_out()
    world.carry_out()
    world.carry_out()
    state = state_of(world.document)
    assert (state.generation, state.rewind, world.commits) == ("second", None, 1)


def test_an_earlier_position_that_was_asked_for_meanwhile_is_still_to_be_done() -> None:
    document = rewinding.prepared(rewinding.asked(followed(), ITEMS, Lsn(300)), ITEMS, "second")
    document = rewinding.asked(document, ITEMS, Lsn(200))  # the commit is there, and nobody knows
    document = rewinding.recovered(document, ITEMS, "second", Lsn(300))
    assert (state_of(document).generation, state_of(document).rewind) == ("second", Rewind(Lsn(200)))


def test_a_load_forgets_what_was_to_be_applied_again() -> None:
    document = rewinding.asked(followed(), ITEMS, Lsn(200))
    planned = two_phase.plan_load(
        document, ITEMS, sync_mode="cdc", load_id="l2", generation="second", chunks=[Chunk(None, None)]
    )
    assert state_of(planned).rewind is None
    done = two_phase.load_done(rewinding.asked(planned, ITEMS, Lsn(1)), ITEMS, Lsn(500), read_to=Lsn(600))
    assert (state_of(done).rewind, state_of(done).replayable_from) == (None, Lsn(600))


def test_from_a_repair_on_the_log_alone_makes_the_table() -> None:
    assert state_of(followed()).replayable_from == Lsn(100)
    assert state_of(rewinding.mended(followed(), ITEMS, Lsn(350))).replayable_from == Lsn(350)
    assert state_of(rewinding.mended(followed(), ITEMS, Lsn(50))).replayable_from == Lsn(100)


def test_what_made_a_table_that_is_ahead_of_the_state_is_not_known_to_be_in_the_log() -> None:
    """The state was put back, to before a repair perhaps."""
    assert state_of(two_phase.adopt(followed(), ITEMS, Lsn(600))).replayable_from == Lsn(600)
    assert state_of(two_phase.adopt(followed(), ITEMS, Lsn(300))).replayable_from == Lsn(100), "rolled back"


def test_an_order_is_read_as_it_was_given(tmp_path: Path) -> None:
    orders.give(tmp_path, [Order("rewind", ITEMS, to=Lsn(200)), Order("pause", ITEMS)])
    [(_, first), (_, second)] = orders.taken(tmp_path)
    assert (first.action, first.to, second.to) == ("rewind", Lsn(200), None)
    document = orders.applied(followed(), [first])
    assert state_of(orders.applied(document, [first])).rewind == Rewind(Lsn(200)), "again, it is the same"


# Whether it can be done


class Command:
    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.state = directory / "state"
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, Any]:
        with pytest.raises(SystemExit) as caught:
            main(["state", "rewind", *arguments, "--json"])
        return int(caught.value.code or 0), json.loads(self._capsys.readouterr().out)

    def refused(self, *arguments: str) -> str:
        code, answer = self(*arguments, "--yes")
        assert (code, answer["error"]["code"]) == (2, "config")
        return f"{answer['error']['message']} {answer['error']['remedy']}"

    def save(self, document: StateDocument) -> None:
        store = StateStore(self.state)
        before = store.load()
        store.save(document.numbered((before.state_version or 0) if before is not None else 0))

    def write_log(self, *schemas: TableSchema, place: str = "", **entry: Any) -> None:
        """Steps of 100 from 100 on, each with changes of the stream under one of these schemas."""
        directory = self.state / "log"
        (directory / SCHEMA_DIRECTORY).mkdir(parents=True, exist_ok=True)
        for number, schema in enumerate(schemas, 1):
            start = 100 * number
            path = directory / SCHEMA_DIRECTORY / f"{schema.id}.json"
            path.write_text(json.dumps(schema.to_json()))
            file = FileEntry("f", schema.id, str(ITEMS), 3, 1000, {"u": 3}, start, start + 50)
            table = TableEntry(ITEMS, (file,), **(entry if number == len(schemas) else {}))
            manifest = Manifest(
                number, "1", 1, Lsn(1), Lsn(start), Lsn(start + 100), "", 2, 0, 0, (table,),
                Place(f"{place}:{start + 100}") if place else None,
            )  # fmt: skip
            manifest_path(directory, number).write_text(json.dumps(manifest.to_json()))


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    (tmp_path / "penstock.yaml").write_text(PIPELINE)
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    command = Command(tmp_path, capsys)
    command.save(followed())
    command.write_log(SCHEMA, SCHEMA, SCHEMA, SCHEMA)
    yield command
    signal.signal(signal.SIGTERM, before)


def test_without_yes_it_says_what_would_be_read_and_does_nothing(command: Command) -> None:
    code, answer = command(str(ITEMS), "--to", "0/C8")
    assert (code, answer["error"]["remedy"]) == (2, "Add --yes if that is what you want.")
    said = "2 steps of the log are read again, up to 0/190, with 4 transactions; of this stream, 6 changes"
    assert answer["error"]["detail"].startswith(said)
    assert state_of(StateStore(command.state).load() or followed()).rewind is None


def test_with_yes_it_is_written_down_from_where_a_step_begins(command: Command) -> None:
    code, answer = command(str(ITEMS), "--to", "0/E0", "--yes")
    assert code == 0
    assert answer == {
        "rewind": {
            "stream": "public.items",
            "asked": "0/E0",
            "from": "0/C8",
            "to": "0/190",
            "steps": 2,
            "transactions": 4,
            "changes": 6,
            "bytes": 2000,
        },
        "told": "ordered",
    }
    document = StateStore(command.state).load()
    assert document is not None
    assert state_of(document).rewind == Rewind(Lsn(200))


def test_not_before_the_load_nor_beyond_the_table_nor_where_the_log_is_gone(command: Command) -> None:
    assert "its rows came from a load" in command.refused(str(ITEMS), "--to", "0/10")
    assert "it is at 0/200, and 0/201 is later" in command.refused(str(ITEMS), "--to", "0/201")
    assert "its last change is before 0/190" in command.refused(str(ITEMS), "--to", "0/190")
    assert "'yesterday' is no position" in command.refused(str(ITEMS), "--to", "yesterday")
    manifest_path(command.state / "log", 1).unlink()
    answer = command.refused(str(ITEMS), "--to", "0/64")
    assert "does not reach back to 0/64; it begins at 0/C8" in answer
    assert "penstock resync public.items" in answer


def test_only_tables_that_can_take_the_log_again(command: Command) -> None:
    assert "would have each twice" in command.refused("public.history", "--to", "0/C8")
    assert "has no change log" in command.refused("public.whole", "--to", "0/C8")
    assert "has no change log" in command.refused("public.later", "--to", "0/C8")
    assert "not part of the pipeline" in command.refused("public.itemz", "--to", "0/C8")
    command.save(pausing.to_be_loaded(followed(), ITEMS, "it was asked for"))
    assert "being loaded" in command.refused(str(ITEMS), "--to", "0/C8")
    command.save(StateDocument.new("p"))
    assert "not loaded yet" in command.refused(str(ITEMS), "--to", "0/C8")


def test_not_through_a_change_of_columns_that_cannot_be_followed(command: Command) -> None:
    command.write_log(SCHEMA, SCHEMA, WIDER, WIDER)
    assert command(str(ITEMS), "--to", "0/C8", "--yes")[0] == 0, "a column that was added is in none before"
    command.write_log(SCHEMA, OTHER, OTHER, OTHER)
    assert "the type of column v changed" in command.refused(str(ITEMS), "--to", "0/64")
    assert command(str(ITEMS), "--to", "0/C8", "--yes")[0] == 0, "behind it nothing is in the way"
    command.write_log(SCHEMA, SCHEMA, SCHEMA, altered=((310, 0),))
    assert "a statement at the source altered it" in command.refused(str(ITEMS), "--to", "0/C8")


def with_default(value: str | None, storage: str) -> TableSchema:
    """SCHEMA with a column more, whose older rows read it as `value`."""
    return replace(WIDER, columns=(*COLUMNS, replace(WIDER.columns[2], missing_value=value)), storage=storage)


def test_not_where_a_default_that_rows_got_is_no_longer_in_the_catalog(command: Command) -> None:
    """VACUUM FULL writes it into the rows and forgets it; to following it came in between."""
    before = replace(SCHEMA, storage="1")
    command.write_log(before, with_default("5", "1"), with_default(None, "2"), with_default(None, "2"))
    assert "column w was added and may have got values" in command.refused(str(ITEMS), "--to", "0/64")
    assert command(str(ITEMS), "--to", "0/C8", "--yes")[0] == 0, "behind it every row has the column"
    command.write_log(before, with_default("5", "1"), with_default("5", "1"), with_default("5", "1"))
    assert command(str(ITEMS), "--to", "0/64", "--yes")[0] == 0, "it is still there"


def test_not_where_a_column_is_known_by_a_name_alone_that_two_columns_had(command: Command) -> None:
    unnumbered = replace(WIDER, columns=tuple(replace(each, attribute_number=0) for each in WIDER.columns))
    added_again = replace(WIDER, columns=(*COLUMNS, replace(WIDER.columns[2], attribute_number=4)))
    command.write_log(unnumbered, SCHEMA, added_again, added_again)
    assert "the catalog had moved on" in command.refused(str(ITEMS), "--to", "0/64")
    command.write_log(unnumbered, WIDER, WIDER, WIDER)
    assert command(str(ITEMS), "--to", "0/64", "--yes")[0] == 0, "no other column had the name"


def test_a_paused_stream_waits_with_it(command: Command) -> None:
    command.save(pausing.paused(followed(), ITEMS, since="2026-01-01T00:00:00+00:00", reason=""))
    assert "it is done when it is resumed" in command(str(ITEMS), "--to", "0/C8")[1]["error"]["detail"]


def test_places_of_a_binlog_are_counted_from_the_steps_of_the_log(command: Command) -> None:
    Path("penstock.yaml").write_text(
        PIPELINE.replace(
            '{type: postgres, url: "postgresql://app@db/shop"}', '{type: mysql, url: "mysql://app@db/shop"}'
        )
    )
    command.write_log(SCHEMA, SCHEMA, SCHEMA, SCHEMA, place="bin.000001")
    code, answer = command(str(ITEMS), "--to", "bin.000001:300")
    assert (code, "after 0/12C " in answer["error"]["message"]) == (2, True)
    assert "no step that ends before" in command.refused(str(ITEMS), "--to", "bin.000001:120")
    assert "is no position" in command.refused(str(ITEMS), "--to", "bin:120")
