"""Rounds of repairs: where they begin, what keeps a stream from one, and what a crash leaves. Table, log and
state are real; what a repair writes: `integration/test_verify`, `integration/test_verify_sources`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from penstock import failpoints
from penstock.core.place import Place
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.lake import repair_round
from penstock.lake.apply import Outcome
from penstock.lake.backfill import Backfill
from penstock.lake.following import Following
from penstock.lake.repair_round import RepairRounds
from penstock.ledger import pausing
from penstock.ledger.dialect import SourceName
from penstock.ledger.recovery import RoundRecovery, recover_round, recover_stream_round
from penstock.log.manifest import Manifest, TableEntry, manifest_path
from tests.unit.test_rewinding import ITEMS, Lane

OTHERS = StreamId("public", "others")
BOTH = pytest.mark.parametrize("source", ["postgres", "mongodb"], ids=["position shared", "position each"])


class Repairing:
    """A lane whose one table is at 400, where its log ends."""

    def __init__(self, directory: Path, source: SourceName) -> None:
        self.directory = directory
        self.lane = Lane(directory, source=source)
        self.rounds = RepairRounds(self.lane.state, Following(self.lane.state, cast(Backfill, None)))

    def seal(self, to: int, *tables: TableEntry) -> None:
        """Another step of the log, from 400 on."""
        manifest = Manifest(
            4, "1", 1, Lsn(1), Lsn(400), Lsn(to), "", 2, 0, 0, tables, cast(Place, None)
        )  # fmt: skip
        manifest_path(self.directory / "log", 4).write_text(json.dumps(manifest.to_json()))

    def repair(self, position: int) -> dict[StreamId, str]:
        return self.rounds.carry_out(Lsn(position), {ITEMS: cast(Any, None)})

    def recovered(self) -> RoundRecovery:
        state = self.lane.state
        if state.ledger.document.dialect.shares_position:
            return recover_round(state.ledger.document, {ITEMS}, state.is_thread_committed)
        return recover_stream_round(state.ledger.document, ITEMS, state.is_thread_committed)

    @property
    def position(self) -> Lsn | None:
        return self.lane.state.ledger.document.level


@pytest.fixture
def repairing(tmp_path: Path, source: SourceName, monkeypatch: pytest.MonkeyPatch) -> Repairing:
    monkeypatch.setattr(repair_round, "merge", lambda *_: {ITEMS: Outcome()})
    return Repairing(tmp_path, source)


@BOTH
def test_a_table_is_taken_into_the_midst_of_a_step_and_repaired_there(repairing: Repairing) -> None:
    repairing.seal(500)
    assert repairing.repair(451) == {}
    record = repairing.lane.table.record()
    assert record is not None
    assert record.marker is not None
    assert (record.marker.start, record.marker.to) == (Lsn(450), Lsn(451))
    assert (repairing.position, repairing.lane.own.committed_to) == (Lsn(451), Lsn(451))
    assert repairing.lane.own.replayable_from == Lsn(451)
    assert not repairing.lane.state.ledger.document.is_under_way


class KilledError(Exception):
    pass


@BOTH
@pytest.mark.parametrize("failpoint", ["cdc.prepared", "cdc.committed"])
def test_killed_in_a_repair_it_is_there_or_not_and_nothing_is_taken_back_to_before_it(
    repairing: Repairing, source: SourceName, failpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reached(name: str) -> None:
        if name == failpoint:
            raise KilledError

    monkeypatch.setattr(failpoints, "reach", reached)
    with pytest.raises(KilledError):
        repairing.repair(401)
    recovered = repairing.recovered()
    state = recovered.document.stream(ITEMS)
    assert state is not None
    assert state.replayable_from == Lsn(401)
    if failpoint == "cdc.committed":
        assert (recovered.kind, state.committed_to) == ("finish", Lsn(401))
        assert recovered.document.level == Lsn(401)
    else:  # nobody has the rows any more; the round is closed, or begun anew, with what the log has
        assert recovered.kind == ("bounded" if source == "postgres" else "again")
        assert (recovered.document.level, state.committed_to) == (Lsn(400), Lsn(400))


@BOTH
def test_a_table_with_a_change_right_before_the_position_is_left_as_it_is(repairing: Repairing) -> None:
    repairing.seal(500, TableEntry(ITEMS, (), truncates=((450, 0),)))
    before = repairing.lane.table.record()
    left = repairing.repair(451)
    assert "right before the position" in left[ITEMS]
    assert (repairing.lane.table.record(), repairing.position) == (before, Lsn(400))


@BOTH
def test_a_change_of_another_table_matters_where_they_share_a_position(
    repairing: Repairing, source: SourceName
) -> None:
    repairing.seal(500, TableEntry(OTHERS, (), truncates=((450, 0),)))
    assert list(repairing.repair(451)) == ([ITEMS] if source == "postgres" else [])


@BOTH
def test_a_paused_table_is_left_as_it_is_and_what_lets_it_go_on_is_told(repairing: Repairing) -> None:
    ledger = repairing.lane.state.ledger
    ledger.write(pausing.paused(ledger.document, ITEMS, since="now", reason="", sync_mode="cdc"))
    repairing.seal(500)
    left = repairing.repair(451)
    assert "`penstock resume public.items`" in left[ITEMS]
    assert repairing.lane.own.committed_to == Lsn(400)


@BOTH
def test_a_table_that_stands_beyond_is_left_as_it_is(repairing: Repairing, source: SourceName) -> None:
    left = repairing.repair(400)
    said = "where the source's log ends" if source == "postgres" else "could not be taken to the position"
    assert said in left[ITEMS]
    assert repairing.position == Lsn(400)
