"""`penstock sync` from a real MongoDB replica set to tables: they equal the source, document by document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import bson
import pytest
from bson import Decimal128, ObjectId
from bson.json_util import loads

from penstock import Pipeline
from penstock.core.errors import PositionGoneError
from penstock.log.manifest import newest_manifest
from penstock.sources.mongodb import catalog
from penstock.sources.mongodb.warming import warm_up
from tests.conftest import wait_until
from tests.mongo_server import MongoServer
from tests.mongo_shop import (
    FOLLOWED,
    Shop,
    Watched,
    assert_history,
    assert_same,
    new_shop,
    order,
    pipeline,
    rows_of,
    states,
    writing,
)
from tests.pipelines import DESTINATIONS, PipelineUnderTest

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    warm_up()  # no test waits for a compiler


@pytest.fixture
def shop(mongo: MongoServer) -> Iterator[Shop]:
    with new_shop(mongo) as found:
        yield found


def test_collections_that_are_written_to_while_they_are_loaded_and_followed_equal_the_source(
    mongo: MongoServer, shop: Shop, tmp_path: Path
) -> None:
    synced = pipeline(mongo, shop, tmp_path / "pipeline")
    with writing(mongo, shop):
        loaded = {report.stream: report.rows_loaded for report in synced.sync().streams}
        assert loaded[f"{shop.name}.notes"] == 3
        assert loaded[f"{shop.name}.words"] > 0
        synced.sync()
    synced.sync()
    assert_same(synced, shop)

    shop["orders"].update_many({"number": {"$mod": [10, 3]}}, {"$set": {"name": "x"}, "$unset": {"raw": 1}})
    shop["orders"].delete_many({"number": {"$mod": [10, 4]}})
    shop["words"].drop()
    shop["words"].insert_one({"_id": "after", "n": 1})
    shop["notes"].delete_many({})
    synced.sync()
    assert_same(synced, shop)
    _require_state_has_tokens(synced, shop)


def _require_state_has_tokens(synced: PipelineUnderTest, shop: Shop) -> None:
    """As the contract has it: a token for each stream, that of one without changes too; the server goes on
    from it with what came after, and nothing else."""
    before = states(synced)
    assert before.keys() == {*FOLLOWED, "notes"}
    assert "_data" not in before["notes"]
    tokens = {before[name]["_data"] for name in FOLLOWED}
    assert len(tokens) == 1
    assert all("next_data" not in state and state["chunks"] == [] for state in before.values())
    newest = newest_manifest(synced.state / "log")
    assert newest is not None
    [token] = tokens
    assert int(token[2:18], 16) == int(newest.end)
    [noted] = shop.client["penstock"]["control"].find({"_id": {"$regex": shop.name}})
    assert noted["from"].time << 32 | noted["from"].inc == int(newest.end)
    shop["orders"].insert_one({"_id": 1, "a": 1})
    with shop.watch(resume_after={"_data": token}) as changes:
        assert next(changes)["fullDocument"] == {"_id": 1, "a": 1}
    synced.sync()
    after = states(synced)
    assert len({after[name]["_data"] for name in FOLLOWED} | tokens) == 2
    assert_same(synced, shop)


@pytest.mark.slow
def test_fields_are_columns_and_what_has_no_place_in_them_is_in_the_rest(
    mongo: MongoServer, shop: Shop, tmp_path: Path
) -> None:
    synced = pipeline(mongo, shop, tmp_path / "pipeline", "fields")
    synced.sync()
    shop["orders"].update_one({"number": 7}, {"$set": {"late": {"a": [1]}, "name": 5}})
    shop["orders"].delete_one({"number": 8})
    shop["orders"].insert_one({"_id": ObjectId(b"9" * 12), "number": 2**40, "paid": "much"})
    synced.sync()
    rows = {row["_id"]: row for row in rows_of(synced, shop, "orders")}
    expected = {str(each["_id"]): each for each in shop["orders"].find()}
    assert rows.keys() == expected.keys()
    for key, document in expected.items():
        row = dict(rows[key])
        rest = loads(row.pop("_rest") or "{}")
        assert row.pop("_id") == key
        for name, value in document.items():
            if name == "_id":
                continue
            held = row.pop(name, None)
            if name in rest:
                assert bson.encode({"v": rest.pop(name)}) == bson.encode({"v": value})
            elif name in ("mixed", "late") and value is not None:
                assert bson.encode({"v": loads(f"[{held}]")[0]}) == bson.encode({"v": value})
            elif isinstance(value, Decimal128):
                assert held == value.to_decimal()
            elif isinstance(value, datetime):
                assert held == value.replace(tzinfo=UTC)
            else:
                assert held == value
        assert rest == {}
        assert not any(value is not None for value in row.values())


@pytest.mark.parametrize("destination", ["parquet", pytest.param("iceberg", marks=pytest.mark.slow)])
def test_integers_that_outgrow_32_bits_are_in_their_column_from_loads_and_changes(
    mongo: MongoServer, shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, destination: str
) -> None:
    """Although the sample had seen small ones alone: none is in `_rest`, or rounded, or loaded again."""
    monkeypatch.setattr(catalog, "SAMPLED_MAX", 1)
    shop["counts"].insert_many([{"_id": f"{number}", "n": number} for number in range(50)])
    stream = f"{shop.name}.counts"
    synced = pipeline(
        mongo,
        shop,
        tmp_path / "pipeline",
        "fields",
        [stream],
        destination=DESTINATIONS[destination],
    )
    Pipeline.from_yaml(synced.file).plan()  # it looks at the fields, and they are remembered
    shop["counts"].insert_one({"_id": "loaded", "n": 2**53 + 1})
    synced.sync()
    shop["counts"].update_one({"_id": "7"}, {"$set": {"n": 2**31}})
    shop["counts"].insert_many([{"_id": "least", "n": -(2**63)}, {"_id": "most", "n": 2**63 - 1}])
    synced.notes.clear()
    synced.sync()
    rows = rows_of(synced, shop, "counts")
    assert {row["_id"]: row["n"] for row in rows} == {
        each["_id"]: each["n"] for each in shop["counts"].find()
    }
    assert [row for row in rows if row["_rest"] is not None] == []
    assert synced.notes == []
    remembered = json.loads((synced.state / "collections.json").read_text())["collections"]
    assert [field for each in remembered.values() for field in each["fields"] if field[0] == "n"] == [
        ["n", "int64", 0]
    ]


@pytest.mark.parametrize("destination", ["parquet", pytest.param("iceberg", marks=pytest.mark.slow)])
def test_a_resync_of_all_streams_looks_at_the_fields_again_and_that_of_one_does_not(
    mongo: MongoServer, shop: Shop, tmp_path: Path, destination: str
) -> None:
    stream = f"{shop.name}.people"
    shop["people"].insert_many([{"_id": f"{number}", "age": number} for number in range(20)])
    settings = {"destination": DESTINATIONS[destination]}
    synced = pipeline(mongo, shop, tmp_path / "pipeline", "fields", [stream], **settings)
    synced.sync()
    for each in shop["people"].find():
        shop["people"].update_one({"_id": each["_id"]}, {"$set": {"city": f"c{each['_id']}", "age": "old"}})

    def shown() -> dict[str, dict[str, object]]:
        return {row.pop("_id"): row for row in rows_of(synced, shop, "people")}

    synced.sync()  # the changes show the field
    synced.sync_apart(command=("resync", stream))
    assert shown() == {
        each["_id"]: {"age": None, "_rest": '{"age":"old"}', "city": each["city"]}
        for each in shop["people"].find()
    }
    synced.sync_apart(command=("resync", "--yes"))
    shop["people"].insert_one({"_id": "new", "city": "cnew", "age": "young"})
    synced.sync()
    assert shown() == {
        each["_id"]: {"age": each["age"], "city": each["city"], "_rest": None}
        for each in shop["people"].find()
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("destination", "exact"), [("parquet", False), ("parquet", True), ("iceberg", False)]
)
def test_append_tables_are_the_history_and_upsert_tables_the_collections(
    mongo: MongoServer, shop: Shop, tmp_path: Path, destination: str, exact: bool
) -> None:
    """`exact`: with post-images, each update has the document as it was; without, its row is marked."""
    identity = {"replica_identity": "full"} if exact else {}
    for name in ("orders", "words"):
        shop.command("collMod", name, changeStreamPreAndPostImages={"enabled": exact})
    streams = [
        {"table": f"{shop.name}.orders", "write": "append", **identity},
        {"table": f"{shop.name}.words", **identity},
    ]
    synced = pipeline(
        mongo, shop, tmp_path / "pipeline", streams=streams, destination=DESTINATIONS[destination]
    )
    watched = Watched(shop)
    with writing(mongo, shop) as written:
        synced.sync()
        written(20)
        synced.sync()
    shop["orders"].update_one({"number": 7}, {"$set": {"name": "gone soon"}})
    shop["orders"].delete_one({"number": 7})
    synced.sync()
    assert_same(synced, shop, "words")
    assert_history(synced, shop, "orders", watched, exact=exact)


@pytest.mark.slow
def test_a_collection_that_was_made_anew_or_took_a_name_is_loaded_again(
    mongo: MongoServer, shop: Shop, tmp_path: Path
) -> None:
    synced = pipeline(mongo, shop, tmp_path / "pipeline")
    synced.sync()
    shop["other"].insert_many([{"_id": number, "from": "other"} for number in range(50)])
    shop["other"].rename("words", dropTarget=True)
    shop["words"].insert_one({"_id": "later"})
    shop["orders"].drop()
    shop["orders"].insert_many([order(number) for number in range(20)])
    synced.sync()
    assert_same(synced, shop)
    shop["orders"].delete_one({"number": 3})
    synced.sync()
    assert_same(synced, shop)


@pytest.mark.slow
def test_filters_cursors_soft_deletes_and_streams_without_their_documents(
    mongo: MongoServer, shop: Shop, tmp_path: Path
) -> None:
    shop["ticks"].insert_many([{"_id": n, "at": datetime(2026, 1, 1, 0, n, tzinfo=UTC)} for n in range(50)])
    shop["late"].insert_many([{"_id": n, "v": n} for n in range(10)])
    streams = [
        {"table": f"{shop.name}.orders", "where": "number < 300"},
        {"table": f"{shop.name}.words", "deletes": "soft"},
        {"table": f"{shop.name}.late", "mode": "strict_cdc"},
        {"table": f"{shop.name}.ticks", "mode": "incremental", "cursor": "at", "lookback": "0"},
    ]
    synced = pipeline(mongo, shop, tmp_path / "pipeline", "fields", streams)
    synced.sync()
    shop["orders"].update_many({"number": {"$in": [1, 2]}}, {"$inc": {"number": 1000}})
    shop["orders"].update_many({"number": {"$in": [501, 502]}}, {"$inc": {"number": -500}})
    shop["orders"].delete_many({"number": {"$in": [5, 505]}})
    shop["orders"].update_many({"number": {"$in": [7, 8, 507]}}, {"$inc": {"number": 1000}})
    shop["orders"].delete_many({"number": {"$in": [1007, 1507]}})  # gone when their updates are read
    shop["words"].delete_many({"n": {"$in": [11, 12]}})
    shop["words"].update_one({"n": 13}, {"$set": {"n": 1013}})
    shop["late"].insert_many([{"_id": n, "v": n} for n in range(20, 25)])
    shop["late"].update_one({"_id": 3}, {"$set": {"v": 33}})
    shop["late"].delete_many({"_id": {"$in": [4, 21]}})
    shop["ticks"].insert_one({"_id": 100, "at": datetime(2026, 1, 2, tzinfo=UTC)})
    shop["ticks"].update_one({"_id": 7}, {"$set": {"at": datetime(2026, 1, 3, tzinfo=UTC)}})
    synced.sync()

    numbers = sorted(row["number"] for row in rows_of(synced, shop, "orders"))
    assert numbers == sorted(each["number"] for each in shop["orders"].find({"number": {"$lt": 300}}))
    words = rows_of(synced, shop, "words")
    present = sorted(row["n"] for row in words if row["_deleted_at"] is None)
    assert present == sorted(each["n"] for each in shop["words"].find())
    assert sorted(row["n"] for row in words if row["_deleted_at"] is not None) == [11, 12]
    late = {int(row["_id"]): row["v"] for row in rows_of(synced, shop, "late")}
    assert late == {3: 33, 20: 20, 22: 22, 23: 23, 24: 24}
    ticks = {row["_id"]: row["at"] for row in rows_of(synced, shop, "ticks")}
    assert ticks == {each["_id"]: each["at"].replace(tzinfo=UTC) for each in shop["ticks"].find()}
    assert states(synced)["ticks"]["at"] == "2026-01-03T00:00:00Z"


@pytest.mark.slow
def test_a_load_that_outlives_its_snapshot_goes_on_under_another(tmp_path: Path) -> None:
    with MongoServer(tmp_path / "server") as mongo, new_shop(mongo) as shop:
        limits = {"rows_per_chunk": 100, "rows_per_second": 300}
        streams = [f"{shop.name}.{name}" for name in FOLLOWED]
        synced = pipeline(mongo, shop, tmp_path / "pipeline", streams=streams, load=limits)

        def keep_states_for(seconds: int) -> None:
            mongo.client.admin.command("setParameter", 1, minSnapshotHistoryWindowInSeconds=seconds)

        def is_lost() -> bool:
            return any("snapshot of the load was lost" in note for note in synced.notes)

        keep_states_for(1)
        with ThreadPoolExecutor(1) as other, writing(mongo, shop, pause_s=0.01):
            syncing = other.submit(synced.sync)
            wait_until(lambda: is_lost() or syncing.done(), "the snapshot to be lost", timeout_s=120)
            keep_states_for(300)
            syncing.result()
        assert is_lost()
        synced.sync()
        assert_same(synced, shop, *FOLLOWED)


@pytest.mark.slow
def test_an_oplog_that_was_dropped_between_two_syncs_is_an_error_and_a_resync_goes_on(
    tmp_path: Path,
) -> None:
    with MongoServer(tmp_path / "server") as mongo:
        shop = mongo.client["shop"]
        for name in (*FOLLOWED, "notes"):
            shop[name].insert_one({"_id": 1})
        synced = pipeline(mongo, shop, tmp_path / "pipeline")
        synced.sync()
        for number in range(2, 20):
            shop["orders"].insert_one({"_id": number})
        time = mongo.client.admin.command("hello")["operationTime"]
        mongo.drop_oplog_before(time.time << 32 | time.inc)
        before = states(synced)
        with pytest.raises(PositionGoneError):
            synced.sync()
        assert states(synced) == before
        assert synced.sync_apart(command=("resync", "--yes")).status == 0
        assert_same(synced, shop)
