"""The judge of append tables of MongoDB sees what is lost, doubled, out of order, or not as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from bson.json_util import CANONICAL_JSON_OPTIONS, dumps

from tests import mongo_history
from tests.mongo_history import AUDIT, TOLD, assert_told

pytestmark = pytest.mark.unit
Rows = list[dict[str, Any]]


class Collection(list[dict[str, Any]]):
    def find(self) -> Collection:
        return self

    def sort(self, key: str) -> Collection:  # type: ignore[override]
        return Collection(sorted(self, key=lambda each: each[key]))


def _row(
    op: str, tx: int, index: int, key: Any, document: Any, unchanged: list[str] | None = None
) -> dict[str, Any]:
    text = None if document is None else dumps(document, json_options=CANONICAL_JSON_OPTIONS)
    own = {"_op": op, "_tx": tx, "_op_index": index, "_unchanged": unchanged}
    return {"_id": dumps(key), "document": text, **own}


def _history() -> tuple[dict[str, Collection], Rows]:
    """A transaction before the load and three after it: 3 is updated twice, looked up later than that, 5 is
    gone when it is looked up, and 1 goes and comes again in one transaction."""
    now = {each["_id"]: each for each in mongo_history._first()}
    audit, rows = Collection(), list[dict[str, Any]]()

    def make(
        transaction: int, step: int, operation: str, key: Any, document: Any, shown: Any = None
    ) -> dict[str, Any]:
        entry = {"_id": transaction * 10 + step, "transaction": transaction}
        audit.append({**entry, "operation": operation, "key": key, "document": document})
        now.pop(key, None)
        if document is not None:
            now[key] = document
        letter = {"insert": "i", "delete": "d"}.get(operation, "u")
        unchanged = None if operation != "update" else ["document"] if shown is None else []
        return _row(letter, 1000 + transaction, step, key, shown or document, unchanged)

    make(1, 0, "insert", 901, {"_id": 901, "n": 1})
    loaded = [_row("r", 0, 0, key, document) for key, document in now.items()]
    last = {"_id": 3, "n": 2}
    rows.append(make(2, 0, "update", 3, {"_id": 3, "n": 1}, last))
    rows.append(make(2, 1, "replace", 7, {"_id": 7, "replaced": 2}))
    rows.append(make(3, 0, "update", 3, last, last))
    gone = make(3, 1, "update", 5, {"_id": 5, "n": 1})
    rows.append({**gone, "document": None})
    rows.append(make(4, 0, "delete", 5, None))
    rows.append(make(4, 1, "delete", 1, None))
    rows.append(make(4, 2, "insert", 1, {"_id": 1, "n": 4}))
    return {AUDIT: audit, TOLD: Collection(now.values())}, [*loaded, *rows]


def _judge(monkeypatch: pytest.MonkeyPatch, shop: dict[str, Collection], rows: Rows) -> None:
    monkeypatch.setattr(mongo_history, "rows_of", lambda *_: rows)
    assert_told(cast(Any, None), cast(Any, shop))


def test_a_history_as_it_was_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    _judge(monkeypatch, *_history())


def _swap(rows: Rows, one: int, other: int) -> None:
    for name in ("_tx", "_op_index"):
        rows[one][name], rows[other][name] = rows[other][name], rows[one][name]


FAULTS: dict[str, Callable[[Rows], Any]] = {
    "a change is lost": lambda rows: rows.pop(-3),
    "the first change since the load is lost": lambda rows: rows.pop(-7),
    "a change is there twice": lambda rows: rows.append({**rows[-1], "_tx": 2000}),
    "a change of before the load is told too": lambda rows: rows.append(
        _row("i", 1001, 0, 901, {"_id": 901, "n": 1})
    ),
    "two changes are swapped": lambda rows: _swap(rows, -7, -6),
    "a transaction is cut in two": lambda rows: rows[-1].update(_tx=2000),
    "two transactions are one": lambda rows: [row.update(_tx=1003) for row in rows[-7:-5]],
    "a loaded document is lost": lambda rows: rows.pop(17),
    "a loaded document is of another moment": lambda rows: rows[17].update(document='{"_id": 17}'),
    "a replaced document is another": lambda rows: rows[-6].update(document='{"_id": 7}'),
    "an update shows an earlier state": lambda rows: rows[-5].update(document='{"_id": 3, "n": 1}'),
    "an update that was looked up is not marked": lambda rows: rows[-7].update(_unchanged=None),
    "an update is marked as gone of a document that was there": lambda rows: rows[-7].update(
        document=None, _unchanged=["document"]
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_in_a_history_is_seen(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    shop, rows = _history()
    FAULTS[fault](rows)
    with pytest.raises(AssertionError):
        _judge(monkeypatch, shop, rows)
