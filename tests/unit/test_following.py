"""What becomes of a stream that cannot go on: decisions that a kill must not cut in two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from penstock.core.position import Lsn
from penstock.lake import following as following_module
from penstock.lake.backfill import Backfill
from penstock.lake.following import Following
from penstock.lake.work import MustReload
from penstock.ledger import two_phase
from penstock.ledger.ledger import Ledger
from penstock.ledger.state import Chunk, StateDocument, StreamState
from penstock.ledger.store import StateStore
from tests.unit.test_rewinding import ITEMS, Lane

pytestmark = pytest.mark.unit


def _loaded(at: Lsn) -> StateDocument:
    document = two_phase.plan_load(
        StateDocument.new("p"),
        ITEMS,
        sync_mode="cdc",
        load_id="load",
        generation="first",
        chunks=[Chunk(None, None)],
    )
    return two_phase.join_global(two_phase.load_done(document, ITEMS, at), ITEMS)


def test_killed_after_any_write_a_table_that_waits_for_its_load_gets_it_when_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = Lane(tmp_path)
    lane.state.streams[ITEMS] = replace(lane.state.streams[ITEMS], write="append")
    lane.state.ledger = Ledger(StateStore(tmp_path / "other"))
    lane.state.ledger.write(_loaded(Lsn(300)))
    plan = MustReload("its updates lack values", by_schema=False, first="have them sent")
    monkeypatch.setattr(following_module, "plan_round", lambda *_: plan)
    states: list[StreamState] = []
    write: Callable[[Ledger, StateDocument], None] = Ledger.write

    def noted(ledger: Ledger, document: StateDocument) -> None:
        write(ledger, document)
        states.append(lane.own)

    monkeypatch.setattr(Ledger, "write", noted)
    Following(lane.state, cast(Backfill, None)).follow(Lsn(400))
    paused = [state for state in states if state.paused is not None]
    assert paused
    assert all(state.reload is not None for state in paused)
    assert paused[-1].cdc_from == Lsn(300)
    assert lane.listener.notes == [
        "public.items is paused: its updates lack values: have them sent; its rows are appended once more "
        "when it is resumed. `penstock resume public.items` lets it go on.",
        "public.items will be loaded again when it is resumed: its updates lack values.",
    ]
