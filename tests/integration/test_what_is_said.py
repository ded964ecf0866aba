"""What people are told: the same by `check` as by `sync`, each remedy at its stream; no slot is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock import Pipeline
from penstock.cli.main import app
from penstock.core.errors import ConfigError, SourceError
from penstock.sources.postgres.slots import read_slot
from tests.conftest import Database
from tests.pipelines import Notes
from tests.traps import MakePipeline


def command(file: Path, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["-c", str(file), "--json", *arguments])
    return result.exit_code, result.stdout


def test_check_says_of_a_missing_table_what_sync_says(database: Database, make: MakePipeline) -> None:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    pipeline = make(["public.order", "pubic.*"])
    code, out = command(pipeline.file, "check")
    with pytest.raises(ConfigError) as raised:
        pipeline.sync()
    assert code == raised.value.exit_code == 2
    findings = {finding.get("stream"): finding for finding in json.loads(out)["findings"]}
    assert findings["public.order"]["remedy"] == raised.value.remedy
    assert "Did you mean public.orders?" in raised.value.remedy
    assert findings["pubic.*"]["level"] == "warning"


def test_a_pattern_that_matches_nothing_beside_one_that_does_is_a_warning(
    database: Database, make: MakePipeline
) -> None:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    code, out = command(make(["public.*", "pubic.*"]).file, "check")
    assert code == 0, out
    findings = {finding.get("stream"): finding for finding in json.loads(out)["findings"]}
    assert findings["public.orders"]["level"] == "ok"
    assert findings["pubic.*"]["level"] == "warning"


def test_each_unfit_stream_has_its_own_remedy(database: Database, make: MakePipeline) -> None:
    database.execute("CREATE TABLE nokey (id int); CREATE UNLOGGED TABLE fast (id int PRIMARY KEY)")
    with pytest.raises(SourceError) as raised:
        make(["public.nokey", "public.fast"]).sync()
    told = raised.value.detail.split("\n")
    for stream, word in (("public.nokey", "primary key"), ("public.fast", "full_refresh")):
        [line] = [number for number, text in enumerate(told) if text.startswith(f"{stream}:")][:1]
        assert "What to do:" in told[line + 1]
        assert word in told[line + 1]


def test_teardown_leaves_a_slot_alone_that_this_pipeline_never_read(
    database: Database, make: MakePipeline
) -> None:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    owner, other = make(["public.orders"]), make(["public.orders"])
    owner.sync()
    other.name = owner.name
    other.write_file()
    with pytest.raises(ConfigError, match="another pipeline may depend on it") as raised:
        Pipeline.from_yaml(other.file).teardown()
    assert "--force" in raised.value.remedy
    with database.connect() as connection:
        assert read_slot(connection, owner.name) is not None
    assert Pipeline.from_yaml(owner.file).teardown() == [f"slot {owner.name}", f"publication {owner.name}"]


class Progress(Notes):
    def __init__(self) -> None:
        super().__init__()
        self.applied: list[tuple[str, int, int]] = []

    def progressed(self, stream: str, phase: str, rows_total: int, bytes_total: int) -> None:
        if phase == "apply":
            self.applied.append((stream, rows_total, bytes_total))


def test_applying_changes_is_told_while_it_goes_on(database: Database, make: MakePipeline) -> None:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY); INSERT INTO orders VALUES (1)")
    pipeline = make(["public.orders"])
    pipeline.sync()
    database.execute("INSERT INTO orders SELECT n FROM generate_series(2, 11) n")
    listener = Progress()
    Pipeline.from_yaml(pipeline.file).sync(listener)
    [(stream, rows, size)] = listener.applied
    assert (stream, rows) == ("public.orders", 10)
    assert size > 0
