"""A collection whose changes are written down beside it, and the judge of its append table.

As triggers do at other sources: each change is audited in the transaction that makes it, with the document as
it is afterwards. One writer makes them all, so the audit's order is that of the commits. Nothing of Penstock
is used but the tables' files.

What an update shows may be a later state of its document (docs/guides/mongodb.md): it must be its own or one
that came after it, and the row must say that it may be.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import bson
from bson.json_util import loads
from pymongo.client_session import ClientSession

from tests.mongo_shop import Shop, rows_of
from tests.pipelines import PipelineUnderTest

TOLD, AUDIT = "told", "audit"
ROWS = 300
_LETTERS = {"insert": "i", "update": "u", "replace": "u", "delete": "d"}
_STEPS_MAX = 10
Documents = dict[bytes, bytes]  # by their ids; encoded
Entry = dict[str, Any]


def _id(number: int) -> Any:
    return number if number % 2 else f"nümber {number}"


def _first() -> list[dict[str, Any]]:
    return [{"_id": _id(number), "n": 0, "text": f"t{number}"} for number in range(ROWS)]


def set_up(shop: Shop) -> None:
    """While nobody writes."""
    shop[TOLD].insert_many(_first())
    shop.create_collection(AUDIT)


def change(shop: Shop, session: ClientSession, number: int) -> None:
    """Changes of one transaction and their audit; `number` is greater with each."""
    told, steps = shop[TOLD], list[Entry]()

    def audit(operation: str, key: Any) -> None:
        document = told.find_one({"_id": key}, session=session)
        of = {"_id": number * _STEPS_MAX + len(steps), "transaction": number}
        steps.append({**of, "operation": operation, "key": key, "document": document})

    def insert(key: Any) -> None:
        told.insert_one({"_id": key, "n": number, "text": "x" * 50}, session=session)
        audit("insert", key)

    def update(key: Any) -> None:
        if told.update_one({"_id": key}, {"$inc": {"n": 1}}, session=session).matched_count:
            audit("update", key)

    def delete(key: Any) -> None:
        if told.delete_one({"_id": key}, session=session).deleted_count:
            audit("delete", key)

    insert(_id(number))
    update(_id(number - 3))
    update(_id(0))  # one that is changed by all
    if told.replace_one({"_id": _id(number - 5)}, {"replaced": number}, session=session).matched_count:
        audit("replace", _id(number - 5))
    delete(_id(number - 9))
    delete(_id(1))  # and comes again in the same transaction
    insert(_id(1))
    shop[AUDIT].insert_many(steps, session=session)


def assert_told(synced: PipelineUnderTest, shop: Shop) -> None:
    """The append table has the documents of one moment, and each change since then once and in order."""
    rows = sorted(rows_of(synced, shop, TOLD), key=lambda row: (row["_tx"], row["_op_index"]))
    loaded = [row for row in rows if row["_op"] == "r"]
    told = [row for row in rows if row["_op"] != "r"]
    entries = list(shop[AUDIT].find().sort("_id"))
    cut = len(entries) - len(told)
    assert cut >= 0, f"{len(told)} changes are told, {len(entries)} were made"
    at_load = _after({_key(each["_id"]): bson.encode(each) for each in _first()}, entries[:cut])
    assert sorted(map(_encoded, loaded)) == sorted(at_load.values()), "not the documents of one moment"
    ids = {row["_id"]: loads(row["document"])["_id"] for row in rows if row["document"] is not None}
    last = {(_key(each["key"]), _state(each["document"])): place for place, each in enumerate(entries)}
    transactions: dict[int, int] = {}
    for place, (row, entry) in enumerate(zip(told, entries[cut:], strict=True), start=cut):
        assert (row["_op"], ids[row["_id"]]) == (_LETTERS[entry["operation"]], entry["key"]), entry
        assert transactions.setdefault(entry["transaction"], row["_tx"]) == row["_tx"], entry
        if entry["operation"] == "update":
            is_there = row["_unchanged"] == []
            assert is_there or row["_unchanged"], f"{entry} is not marked"
            state = _encoded(row) if is_there else None
            assert last.get((_key(entry["key"]), state), -1) >= place, f"{entry}: not so then, nor later"
        else:
            assert row["_unchanged"] is None, entry
            assert row["_op"] == "d" or _encoded(row) == bson.encode(entry["document"]), entry
    assert len(set(transactions.values())) == len(transactions), "transactions are one"
    now = _after(at_load, entries[cut:])
    assert sorted(now.values()) == sorted(map(bson.encode, shop[TOLD].find())), "the audit lacks changes"


def _after(documents: Documents, entries: Iterable[Entry]) -> Documents:
    found = dict(documents)
    for entry in entries:
        if entry["document"] is None:
            del found[_key(entry["key"])]
        else:
            found[_key(entry["key"])] = bson.encode(entry["document"])
    return found


def _state(document: dict[str, Any] | None) -> bytes | None:
    """None: it is gone."""
    return None if document is None else bson.encode(document)


def _key(value: Any) -> bytes:
    return bson.encode({"_id": value})


def _encoded(row: dict[str, Any]) -> bytes:
    return bson.encode(loads(row["document"]))
