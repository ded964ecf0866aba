"""`penstock sync` from a real MongoDB replica set to tables: they equal the source, document by document."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import bson
import pytest
from bson import Decimal128, ObjectId
from bson.json_util import loads

from penstock.core.errors import PositionGoneError
from penstock.log.manifest import newest_manifest
from penstock.sources.mongodb.warming import warm_up
from tests.mongo_server import MongoServer
from tests.mongo_shop import (
    FOLLOWED,
    Shop,
    assert_same,
    new_shop,
    order,
    pipeline,
    rows_of,
    states,
    writing,
)
from tests.pipelines import PipelineUnderTest

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
            elif isinstance(value, Decimal128):
                assert held == value.to_decimal()
            elif isinstance(value, datetime):
                assert held == value.replace(tzinfo=UTC)
            elif name == "mixed" and value is not None:
                assert bson.encode({"v": loads(f"[{held}]")[0]}) == bson.encode({"v": value})
            else:
                assert held == value
        assert rest == {}
        assert not any(value is not None for value in row.values())


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
