"""The same promises on every catalog: a load, changes, and a second writer that must not land."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.config.models import DestinationConfig
from penstock.core.errors import CommitConflictError
from penstock.core.position import Lsn
from penstock.destinations.iceberg import IcebergDestination
from penstock.lake.destination import open_destination
from tests.conftest import Database
from tests.iceberg import session
from tests.integration.test_iceberg_table import SCHEMA, STREAM, loaded, marker, rows_in_spark, write


def destination(catalog: dict[str, Any], directory: Path) -> IcebergDestination:
    config = DestinationConfig.model_validate(
        {"type": "iceberg", "warehouse": str(directory / "lake"), "catalog": catalog}
    )
    opened = open_destination(config, lambda: session(directory))
    assert isinstance(opened, IcebergDestination)
    return opened


@pytest.fixture(params=["sqlite", "hadoop", "postgres"])
def catalog(request: pytest.FixtureRequest, database: Database) -> dict[str, Any]:
    if request.param == "postgres":
        return {"type": "postgres", "uri": database.url}
    return {"type": request.param}


def test_what_is_committed_is_read_and_a_second_writer_lands_nowhere(
    catalog: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = destination(catalog, tmp_path).table(STREAM)
    columns, _ = loaded(table, [1])
    fresh = destination(catalog, tmp_path)
    assert fresh.streams() == [STREAM]
    other = fresh.table(STREAM)

    def overtake(name: str) -> None:
        if name == "iceberg.staged":
            monkeypatch.undo()
            added = [write(other, columns, [2], "second")]
            other.commit_changes(
                Lsn(100), marker(100, 150, epoch=2), SCHEMA, added=added, removed=[], columns=columns
            )

    monkeypatch.setattr("penstock.failpoints.reach", overtake)
    added = [write(table, columns, [3], "first")]
    with pytest.raises(CommitConflictError):
        table.commit_changes(Lsn(100), marker(100, 200), SCHEMA, added=added, removed=[], columns=columns)
    assert rows_in_spark(table, tmp_path) == [(1, "loaded", 1), (2, "second", 2)]
    table.drop_all()
    assert destination(catalog, tmp_path).streams() == []
