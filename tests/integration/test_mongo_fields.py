"""`layout: fields` while documents get other fields: each is in its own column or in `_rest`, and exactly.

The oracle reads rows by PyArrow and documents by the driver: of a row, every field of its document is in one
of both places and none is in two, and the value is the document's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import bson
import pytest
from bson import Decimal128
from bson.json_util import loads

from penstock import Pipeline
from penstock.core.errors import SourceError
from penstock.sources.mongodb.fields import Column, Form
from penstock.sources.mongodb.remembered import RememberedFields
from penstock.sources.mongodb.warming import warm_up
from tests.conftest import wait_until
from tests.mongo_server import MongoServer
from tests.mongo_shop import Shop, new_shop, pipeline, rows_of
from tests.pipelines import DESTINATIONS, PipelineUnderTest

pytestmark = pytest.mark.integration

ON_BOTH = pytest.mark.parametrize("destination", ["parquet", pytest.param("iceberg", marks=pytest.mark.slow)])


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    warm_up()  # no test waits for a compiler


@pytest.fixture
def shop(mongo: MongoServer) -> Iterator[Shop]:
    with new_shop(mongo) as found:
        yield found


def people(
    mongo: MongoServer,
    shop: Shop,
    directory: Path,
    *streams: Any,
    destination: str = "parquet",
    new_fields: int | None = None,
    **settings: Any,
) -> PipelineUnderTest:
    """A pipeline of `people`, of whom there are twenty, and of the streams that are given instead."""
    shop["people"].insert_many([{"_id": f"{number}", "n": number} for number in range(20)])
    made = pipeline(
        mongo,
        shop,
        directory,
        "fields",
        list(streams) or [f"{shop.name}.people"],
        **{"destination": DESTINATIONS[destination], **settings},
    )
    if new_fields is not None:
        let_come(made, new_fields)
    return made


def let_come(synced: PipelineUnderTest, new_fields: int) -> None:
    source = {**synced.settings["source"], "new_fields": new_fields}
    synced.settings = {**synced.settings, "source": source}
    synced.write_file()


def assert_exact(synced: PipelineUnderTest, shop: Shop, name: str = "people") -> list[str]:
    """What is in `_rest`, of any row."""
    rows = rows_of(synced, shop, name)
    documents = {str(each["_id"]): each for each in shop[name].find()}
    assert sorted(row["_id"] for row in rows) == sorted(documents)
    in_rest: set[str] = set()
    for row in rows:
        rest = loads(row.pop("_rest") or "{}")
        held = {name: value for name, value in row.items() if value is not None and name != "_id"}
        assert not held.keys() & rest.keys(), "a value is in one place"
        in_rest |= rest.keys()
        expected = {
            name: value
            for name, value in documents[row["_id"]].items()
            if name != "_id" and value is not None
        }
        assert held.keys() | {name for name, value in rest.items() if value is not None} == expected.keys()
        for field, value in expected.items():
            if field in rest:
                assert bson.encode({"v": rest[field]}) == bson.encode({"v": value})
            else:
                assert held[field] == _as_held(value), field
    return sorted(in_rest)


def _as_held(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC)
    return value.to_decimal() if isinstance(value, Decimal128) else value


def columns_of(synced: PipelineUnderTest, shop: Shop, name: str = "people") -> list[str]:
    return list(Pipeline.from_yaml(synced.file).table(f"{shop.name}.{name}").to_arrow().column_names)


def versions(synced: PipelineUnderTest) -> int:
    return len(list((synced.state / "log" / "schemas").glob("*.json")))


@ON_BOTH
def test_a_field_that_a_change_shows_is_a_column_from_then_on(
    mongo: MongoServer, shop: Shop, tmp_path: Path, destination: str
) -> None:
    """Older rows have it in `_rest`, as they had, until they change or are loaded again."""
    synced = people(mongo, shop, tmp_path / "pipeline", destination=destination, new_fields=0)
    synced.sync()
    shop["people"].update_many({"n": {"$lt": 5}}, {"$set": {"city": "Bern", "spent": Decimal128("1.50")}})
    synced.sync()
    assert columns_of(synced, shop) == ["_id", "n", "_rest"]
    assert assert_exact(synced, shop) == ["city", "spent"]

    let_come(synced, 100)
    at = datetime(2026, 1, 1, 12, 30, 0, 123_000)
    shop["people"].insert_one({"_id": "first", "n": 100})
    shop["people"].update_one({"_id": "1"}, {"$set": {"city": "Basel"}})
    shop["people"].insert_one({"_id": "new", "at": at, "big": 2**53 + 1})
    shop["people"].update_one({"_id": "9"}, {"$set": {"spent": Decimal128("7.25")}})
    shop["people"].delete_one({"_id": "2"})
    synced.notes.clear()
    synced.sync()
    assert columns_of(synced, shop) == ["_id", "n", "_rest", "city", "spent", "at", "big"]
    assert assert_exact(synced, shop) == ["city", "spent"]
    rows = {row["_id"]: row for row in rows_of(synced, shop, "people")}
    assert (rows["1"]["city"], rows["1"]["_rest"]) == ("Basel", None)
    assert (rows["3"]["city"], json.loads(rows["3"]["_rest"])["city"]) == (None, "Bern")
    assert rows["new"]["big"] == 2**53 + 1

    shop["people"].insert_one({"_id": "later", "zip": "3000", "city": 7, "at": "noon"})
    synced.sync()
    assert columns_of(synced, shop)[-1] == "zip"
    assert assert_exact(synced, shop) == ["at", "city", "spent"]
    assert synced.notes == [], "nothing was loaded again"

    synced.sync_apart(command=("resync", f"{shop.name}.people"))
    synced.sync()
    assert columns_of(synced, shop) == ["_id", "n", "_rest", "city", "spent", "at", "big", "zip"]
    assert assert_exact(synced, shop) == ["at", "city"]


def test_names_that_carry_data_make_no_more_columns_than_are_let(
    mongo: MongoServer, shop: Shop, tmp_path: Path
) -> None:
    """Nor do names that no table could have for a column; all of them are in `_rest`, and stop nothing."""
    stream = {"table": f"{shop.name}.people", "write": "append", "rename": {"n": "number"}}
    synced = people(mongo, shop, tmp_path / "pipeline", stream, new_fields=3)
    synced.sync()
    unfit = {"_op": 1, "_tx": 2, "N": 3, "number": 4, "_deleted_at": 5, "": 6, "a\nb": 7, "nothing": None}
    shop["people"].insert_one({"_id": "unfit", **unfit})
    synced.sync()
    assert columns_of(synced, shop)[:3] == ["_id", "number", "_rest"]
    assert versions(synced) == 1
    for first in (0, 30):
        shop["people"].insert_many(
            [{"_id": f"u{number}", f"user{number}": number} for number in range(first, first + 30)]
        )
        synced.sync()
    shown = [name for name in columns_of(synced, shop) if name.startswith("user")]
    assert shown == ["user0", "user1", "user2"]
    assert versions(synced) == 2
    rows = {row["_id"]: row for row in rows_of(synced, shop, "people")}
    assert loads(rows["unfit"]["_rest"]) == unfit
    assert loads(rows["u59"]["_rest"]) == {"user59": 59}
    assert rows["u1"]["user1"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "place", ["capture.fields_remembered", "log.files_written", "cdc.written", "cdc.committed"]
)
@pytest.mark.parametrize("destination", list(DESTINATIONS))
def test_a_kill_while_a_field_gets_its_column_loses_and_doubles_nothing(
    mongo: MongoServer, shop: Shop, tmp_path: Path, destination: str, place: str
) -> None:
    synced = people(mongo, shop, tmp_path / "pipeline", destination=destination)
    synced.sync()
    shop["people"].insert_many([{"_id": f"c{n}", "n": n, "city": f"city {n}"} for n in range(5)])
    ended = synced.sync_apart(f"{place}=kill")
    assert place in " ".join(ended.struck), ended
    shop["people"].update_one({"_id": "c1"}, {"$set": {"city": "other", "zip": "3000"}})
    shop["people"].update_one({"_id": "7"}, {"$set": {"zip": "4000"}})
    synced.sync()
    assert columns_of(synced, shop) == ["_id", "n", "_rest", "city", "zip"]
    assert assert_exact(synced, shop) == []
    remembered = json.loads((synced.state / "collections.json").read_text())
    [people_fields] = remembered["collections"].values()
    assert [name for name, _, _ in people_fields["later"]] == ["city", "zip"]


@pytest.mark.slow
@ON_BOTH
def test_a_field_that_comes_while_its_collection_is_loaded_does_not_begin_the_load_again(
    mongo: MongoServer, shop: Shop, tmp_path: Path, destination: str
) -> None:
    """Capture follows meanwhile, for another stream, so that the catalog changes under the load."""
    others = f"{shop.name}.notes"
    synced = people(mongo, shop, tmp_path / "pipeline", others, destination=destination)
    synced.sync()
    synced.streams = [others, f"{shop.name}.people"]
    synced.write_file()
    running = synced.start_sync("load.planned=pause")
    running.wait_until_paused("load.planned")
    shop["people"].insert_many([{"_id": "early", "city": "Bern"}, {"_id": "early too", "zip": "3000"}])
    shop["people"].update_one({"_id": "3"}, {"$set": {"city": "Basel"}})
    fields = synced.state / "collections.json"
    wait_until(lambda: "city" in fields.read_text(), "capture to have seen the field", timeout_s=120)
    running.go_on()
    ended = running.wait()
    assert ended.status == 0, ended
    assert "loading again" not in str(ended)
    synced.sync()
    assert columns_of(synced, shop) == ["_id", "n", "_rest", "city", "zip"]
    assert assert_exact(synced, shop) == []
    assert synced.notes == []


@pytest.mark.slow
def test_a_load_that_was_cut_short_goes_on_with_its_columns_when_others_have_come(
    mongo: MongoServer, shop: Shop, tmp_path: Path
) -> None:
    limits = {"rows_per_chunk": 1}  # more chunks than share a commit
    synced = people(mongo, shop, tmp_path / "pipeline", load=limits)
    ended = synced.sync_apart("load.chunks_removed=kill")
    assert ended.killed, ended
    document = shop["people"].find_one({"_id": "19"})
    assert document is not None
    shop["people"].update_one({"_id": "19"}, {"$set": {"city": "Bern"}})
    shop["people"].insert_one({"_id": "x", "city": "Basel"})
    fields = synced.state / "collections.json"
    [key] = json.loads(fields.read_text())["collections"]
    RememberedFields(fields).add_later(key, [Column("city", Form.STRING, later=True)], 100)
    synced.sync()
    assert any("going on with a load" in note for note in synced.notes), synced.notes
    assert not any("starts again" in note for note in synced.notes), synced.notes
    assert columns_of(synced, shop) == ["_id", "n", "_rest", "city"]
    assert assert_exact(synced, shop) in ([], ["city"])  # by what the chunks' snapshot shows
    shop["people"].update_one({"_id": "4"}, {"$set": {"city": "Thun"}})
    synced.sync()
    assert assert_exact(synced, shop) in ([], ["city"])


@pytest.mark.slow
def test_a_stream_may_wait_before_a_new_column_or_end_the_sync(
    mongo: MongoServer, shop: Shop, tmp_path: Path
) -> None:
    stream = {"table": f"{shop.name}.people", "on_schema_change": "pause"}
    synced = people(mongo, shop, tmp_path / "pipeline", stream)
    synced.sync()
    shop["people"].insert_one({"_id": "x", "city": "Bern"})
    synced.sync()
    assert any("column city was added" in note and "is paused" in note for note in synced.notes)
    assert columns_of(synced, shop) == ["_id", "n", "_rest"]
    synced.sync_apart(command=("resume", f"{shop.name}.people"))
    synced.sync()
    assert columns_of(synced, shop) == ["_id", "n", "_rest", "city"]
    assert assert_exact(synced, shop) == []

    stream["on_schema_change"] = "fail"
    synced.write_file()
    shop["people"].insert_one({"_id": "y", "zip": "3000"})
    with pytest.raises(SourceError, match="column zip was added"):
        synced.sync()
    stream["on_schema_change"] = "evolve"
    synced.write_file()
    synced.sync()
    assert assert_exact(synced, shop) == []


@pytest.mark.slow
def test_a_stream_that_lists_the_rest_gets_what_moves_out_of_it(
    mongo: MongoServer, shop: Shop, tmp_path: Path
) -> None:
    """And one that lists neither gets neither, and filters go on by the fields that they name."""
    shop["places"].insert_many([{"_id": f"{number}", "n": number, "m": 1} for number in range(20)])
    with_rest = {"table": f"{shop.name}.people", "columns": ["_id", "_rest"], "where": "n < 50"}
    without = {"table": f"{shop.name}.places", "columns": ["_id", "n"]}
    synced = people(mongo, shop, tmp_path / "pipeline", with_rest, without)
    synced.sync()
    for name in ("people", "places"):
        shop[name].insert_many([{"_id": "in", "n": 30, "city": "Bern"}, {"_id": "out", "n": 70, "city": "B"}])
    synced.sync()
    assert columns_of(synced, shop) == ["_id", "_rest", "city"]
    assert columns_of(synced, shop, "places") == ["_id", "n"]
    rows = {row["_id"]: row for row in rows_of(synced, shop, "people")}
    assert rows["in"] == {"_id": "in", "_rest": None, "city": "Bern"}
    assert "out" not in rows
    assert len(rows_of(synced, shop, "places")) == 22

    with_rest["where"] = "city = 'Bern'"
    synced.write_file()
    synced.sync()
    assert [row["_id"] for row in rows_of(synced, shop, "people")] == ["in"]
