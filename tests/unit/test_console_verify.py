"""The console's screen of comparisons: how much differs is for all, which rows is for who may act."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.config import Config
from penstock.console.screens import Screens
from penstock.core.errors import ConfigError
from penstock.core.verify_report import ColumnDifference, Difference, VerifiedStream, VerifyReport
from penstock.verify import reports
from tests.idle_pipeline import idle_pipeline
from tests.unit.test_console_attacks import ACT, LOOK, served

pytestmark = pytest.mark.unit

SECRET = "4711-secret"
DIFFERS = VerifiedStream(
    "public.orders",
    "different",
    position="0/1A",
    source_rows=10,
    table_rows=9,
    missing=1,
    different=1,
    columns={"amount": 1},
    buckets_differing=5,
    buckets_looked_into=2,
    differences=(
        Difference("missing", {"id": SECRET}),
        Difference("different", {"id": SECRET}, (ColumnDifference("amount", SECRET, SECRET),)),
    ),
    left_out=4,
)
NOT_NOW = VerifiedStream("public.orders", "not compared", "it is being loaded again", "for now")
EQUAL = VerifiedStream("public.lines", "equal", position="0/1A", source_rows=3, table_rows=3)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config.load(idle_pipeline(tmp_path, ["public.*"]), {})


def saved(config: Config, hour: int, *streams: VerifiedStream, sample: float = 1.0) -> str:
    report = VerifyReport(streams, f"2026-11-16T{hour:02}:00:00+00:00", 1.5, sample, shows_values=True)
    return reports.save(config.state, report).stem


def shown(config: Config, name: str, **fields: str) -> dict[str, Any]:
    return Screens(config, Path("penstock.yaml")).looks()[name](fields)


def rows(config: Config, **fields: str) -> dict[str, Any]:
    return Screens(config, Path("penstock.yaml")).values()["verify.rows"](fields)


def test_what_is_known_of_a_stream_is_of_the_newest_run_that_compared_it(config: Config) -> None:
    assert shown(config, "verify") == {"runs": [], "streams": []}
    first = saved(config, 9, DIFFERS, EQUAL)
    second = saved(config, 10, NOT_NOW, EQUAL)
    found = shown(config, "verify")
    assert [(each["run"], each["different"], each["not compared"]) for each in found["runs"]] == [
        (second, 0, 1),
        (first, 1, 0),
    ]
    lines, orders = found["streams"]
    assert (lines["stream"], lines["verdict"], lines["run"]) == ("public.lines", "equal", second)
    assert (orders["verdict"], orders["run"], orders["missing"], orders["more"]) == ("different", first, 1, 3)
    assert orders["since"] == "it is being loaded again"
    saved(config, 11, VerifiedStream("public.orders", "equal"))
    assert shown(config, "verify")["streams"][1]["verdict"] == "equal"
    saved(config, 12, VerifiedStream("public.new", "not compared", "it is not loaded yet", "for now"))
    last = saved(config, 13, VerifiedStream("public.new", "not compared", "it waits", "for now"))
    new = shown(config, "verify")["streams"][1]
    assert (new["stream"], new["reason"], new["run"], "since" in new) == (
        "public.new",
        "it waits",
        last,
        False,
    )


def test_a_part_that_is_equal_does_not_stand_in_for_a_known_difference(config: Config) -> None:
    first = saved(config, 9, DIFFERS)
    equal = VerifiedStream("public.orders", "equal", position="0/2B", source_rows=1, table_rows=1)
    saved(config, 10, equal, sample=0.05)
    [orders] = shown(config, "verify")["streams"]
    assert (orders["verdict"], orders["run"], orders["missing"]) == ("different", first, 1)
    assert orders["since"] == "a part of its rows was found equal"
    last = saved(config, 11, equal)
    [orders] = shown(config, "verify")["streams"]
    assert (orders["verdict"], orders["run"], "since" in orders) == ("equal", last, False)


def test_what_a_lane_has_sent_of_a_stream_is_known_apart_from_its_table(config: Config) -> None:
    saved(config, 9, DIFFERS)
    sent = VerifiedStream("public.orders", "different", lane="kafka", doubled=2, notes=("2 are gone",))
    report = VerifyReport((sent,), "2026-11-16T10:00:00+00:00", 1.5, of="kafka")
    run = reports.save(config.state, report).stem
    found = shown(config, "verify")
    table, lane = found["streams"]
    assert (table["name"], table["missing"], table["lane"]) == ("public.orders", 1, "")
    assert (lane["name"], lane["doubled"], lane["run"]) == ("public.orders in kafka", 2, run)
    assert found["runs"][0]["of"] == "kafka"
    assert rows(config, run=run, stream="public.orders")["lane"] == "kafka"
    assert reports.known(config.state)["public.orders"].doubled == 0, "metrics are of tables"
    assert reports.last_began_s(config.state) is None, "it puts off no comparison of tables"
    [told] = [each for _, document in reports.kept(config.state, run) for each in document["streams"]]
    assert VerifiedStream.from_json(told) == sent


def test_keys_of_rows_are_shown_to_nobody_who_only_looks(config: Config) -> None:
    run = saved(config, 9, DIFFERS, EQUAL)
    seen = [shown(config, "verify"), shown(config, "verify.run", run=run)]
    assert SECRET not in json.dumps(seen)
    assert seen[1]["shown"][0]["columns"] == {"amount": 1}
    told = rows(config, run=run, stream="public.orders")
    assert told["shown"] == [
        {"kind": "missing", "key": {"id": SECRET}, "columns": []},
        {"kind": "different", "key": {"id": SECRET}, "columns": ["amount"]},
    ]
    assert told["left_out"] == 4


def test_only_runs_that_are_kept_are_read(config: Config) -> None:
    saved(config, 9, DIFFERS)
    (config.state / "secret.json").write_text('{"began_at": "2026-11-16T09:00:00+00:00", "streams": []}')
    (config.state / "verify" / "99.json").write_text("{}")
    for name in ("../secret", "99", "2026-11-16T10", "x" * 299):
        with pytest.raises(ConfigError, match="not kept"):
            shown(config, "verify.run", run=name)
    with pytest.raises(ConfigError, match="missing"):
        shown(config, "verify.run")
    assert len(shown(config, "verify")["runs"]) == 1


def test_who_may_look_asks_for_keys_in_vain_and_who_may_act_is_written_down(tmp_path: Path) -> None:
    console, client = served(tmp_path)
    try:
        reports.save(client.state, VerifyReport((DIFFERS,), "2026-11-16T09:00:00+00:00", 1.5))
        assert client.ask("GET", "/api/verify").status == 401
        board, ada = client.login(LOOK), client.login(ACT)
        got = client.ask("GET", "/api/verify", headers=board)
        [run] = got.json["runs"]
        asked = {"of": "verify.rows", "fields": {"run": run["run"], "stream": "public.orders"}}
        more = client.ask("GET", f"/api/verify/run?run={run['run']}", headers=board)
        refused = client.ask("POST", "/api/values", asked, headers=board)
        assert (got.status, more.status, refused.status) == (200, 200, 403)
        assert SECRET.encode() not in got.body + more.body + refused.body
        told = client.ask("POST", "/api/values", asked, headers=ada)
        assert told.json["shown"][0]["key"] == {"id": SECRET}
        assert [
            (line["who"], line["stream"]) for line in client.audit() if "verify.rows" in line["what"]
        ] == [("ada", "public.orders")]
        assert SECRET not in json.dumps(client.audit())
    finally:
        console.stop()
