"""What is told beside changes: where transactions end, with their events counted."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.stream import StreamId
from penstock.streams.events import TOMBSTONE, Events
from penstock.streams.notices import Boundaries


def events(table: str, tx: list[int], kinds: bytes) -> Events:
    return Events(
        StreamId("public", table),
        table,
        np.array(tx, np.int64),
        np.arange(len(tx), dtype=np.int64),
        np.frombuffer(kinds, np.uint8),
        np.array(tx, np.int64) + 1000,
        pa.array([b"[1]"] * len(tx), pa.binary()),
        pa.array([b"{}"] * len(tx), pa.binary()),
    )


def told(made: list[Events]) -> list[dict[str, Any]]:
    return [json.loads(value) for each in made for value in each.value.to_pylist()]


def test_a_transaction_that_comes_in_parts_is_told_once_and_whole() -> None:
    boundaries = Boundaries("transactions")
    boundaries.count(events("orders", [5, 5, 7], b"cuc"))
    boundaries.count(events("lines", [5], b"c"))
    boundaries.count(events("orders", [7, 7], bytes([ord("d"), TOMBSTONE])))
    [made] = boundaries.take()
    assert made.route == "transactions"
    assert made.tx.tolist() == [5, 7]
    first, second = told([made])
    assert (first["txid"], first["event_count"]) == (1005, 3)
    assert first["data_collections"] == [
        {"data_collection": "public.lines", "event_count": 1},
        {"data_collection": "public.orders", "event_count": 2},
    ]
    assert second["event_count"] == 2, "a tombstone is no event of its own"
    assert boundaries.take() == []
