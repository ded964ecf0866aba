"""Comparisons by schedule: what an instance knows of them when it starts, and when the first one is due."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from penstock import metrics
from penstock.config import Config
from penstock.core.verify_report import VerifiedStream, VerifyReport
from penstock.lake.spark_starter import SparkStarter
from penstock.verify import reports
from penstock.verify.always import Verifying
from tests.idle_pipeline import idle_pipeline

pytestmark = pytest.mark.unit

DIFFERS = VerifiedStream("public.orders", "different", missing=3, buckets_differing=3, buckets_looked_into=3)
NOT_NOW = VerifiedStream("public.orders", "not compared", "it is being loaded again", "for now")


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config.load(idle_pipeline(tmp_path, ["public.*"], verify={"every": "24h"}), {})


def instance(config: Config, *, has_loaded: bool = True) -> Verifying:
    """One that has just started."""
    return Verifying(
        config, {}, cast(SparkStarter, None), is_ready=lambda: True, has_loaded=lambda: has_loaded, note=print
    )


def said(
    config: Config,
    hours_ago: float,
    *streams: VerifiedStream,
    sample: float = 1.0,
    at: str | None = None,
    by_schedule: bool = True,
) -> None:
    began_at = (datetime.now(UTC) - timedelta(hours=hours_ago)).isoformat(timespec="seconds")
    report = VerifyReport(streams, began_at, 1.0, sample, at=at, by_schedule=by_schedule)
    reports.save(config.state, report)


def measured(verifying: Verifying) -> dict[str, float]:
    """Of the stream."""
    found = verifying.samples()
    return {name: value for name, labels, value in found if labels.get("stream") == "public.orders"}


def test_a_restart_remembers_the_differences_that_were_found(config: Config) -> None:
    said(config, 5, VerifiedStream("public.orders", "equal"), VerifiedStream("public.lines", "equal"))
    said(config, 4, DIFFERS)
    restarted = instance(config)
    assert measured(restarted)[metrics.VERIFY_DIFFERENCES.name] == 3
    assert {labels["stream"] for _, labels, _ in restarted.samples() if labels} == {
        "public.orders",
        "public.lines",
    }
    assert not restarted.is_due()
    said(config, 3, NOT_NOW)  # that tells nothing of them
    assert measured(instance(config)) == {
        metrics.VERIFY_DIFFERENCES.name: 3,
        metrics.VERIFY_NOT_COMPARED.name: 1,
    }
    said(config, 2, VerifiedStream("public.orders", "equal"))
    assert measured(instance(config))[metrics.VERIFY_DIFFERENCES.name] == 0


def test_what_is_remembered_has_no_rows_and_survives_a_file_that_cannot_be_read(config: Config) -> None:
    said(config, 2, DIFFERS)
    for number, content in enumerate((b"", b"[]", b"{}", b'{"began_at": 7, "streams": [{"verdict": 1}]}')):
        (config.state / "verify" / f"9{number}.json").write_bytes(content)
    assert reports.known(config.state) == {"public.orders": DIFFERS}
    assert not instance(config).is_due()
    later = {"stream": "a", "verdict": "equal", "of_a_later_version": 1, "differences": [{"kind": "extra"}]}
    assert VerifiedStream.from_json(later) == VerifiedStream("a", "equal")


def test_the_first_comparison_waits_for_the_first_load_and_no_later_one_does(config: Config) -> None:
    assert not instance(config, has_loaded=False).is_due()
    assert instance(config).is_due()
    said(config, 25, DIFFERS)
    assert instance(config, has_loaded=False).is_due()  # one new table keeps no other from it


def test_what_somebody_compares_by_hand_puts_no_comparison_off(config: Config) -> None:
    said(config, 25, DIFFERS)
    said(config, 1, DIFFERS, by_schedule=False)
    assert instance(config).is_due()
    said(config, 0.5, DIFFERS)
    assert not instance(config).is_due()


def test_a_part_that_is_equal_makes_no_known_difference_forgotten(config: Config) -> None:
    equal = VerifiedStream("public.orders", "equal")
    said(config, 5, DIFFERS)
    said(config, 4, equal, sample=0.05)
    assert reports.known(config.state) == {"public.orders": DIFFERS}
    assert measured(instance(config))[metrics.VERIFY_DIFFERENCES.name] == 3
    said(config, 2, equal, by_schedule=False)
    assert reports.known(config.state) == {"public.orders": equal}
    said(config, 1, DIFFERS, sample=0.05)
    assert reports.known(config.state) == {"public.orders": DIFFERS}


def test_what_an_earlier_version_of_a_table_was_changes_nothing_that_is_known_of_it(config: Config) -> None:
    equal = VerifiedStream("public.orders", "equal")
    said(config, 5, equal)
    said(config, 4, DIFFERS, replace(DIFFERS, stream="public.lines"), at="0/1A2B3C40")
    assert reports.known(config.state) == {"public.orders": equal}
    assert measured(instance(config))[metrics.VERIFY_DIFFERENCES.name] == 0
    said(config, 3, DIFFERS)
    said(config, 2, NOT_NOW, at="0/1A2B3C40")
    assert measured(instance(config)) == {
        metrics.VERIFY_DIFFERENCES.name: 3,
        metrics.VERIFY_NOT_COMPARED.name: 0,
    }


def test_results_that_began_in_one_second_are_all_kept_in_their_order(config: Config) -> None:
    moment = "2026-11-16T09:00:00+00:00"
    equal = VerifiedStream("public.orders", "equal")
    told = [DIFFERS, *[equal] * 10, replace(DIFFERS, missing=12, buckets_differing=12)]
    for each in told:
        reports.save(config.state, VerifyReport((each,), moment, 1.0))
        reports.save(config.state, VerifyReport((replace(each, lane="kafka"),), moment, 1.0, of="kafka"))
    assert len(list(reports.kept(config.state))) == 2 * len(told)
    assert reports.known(config.state) == {"public.orders": told[-1]}


def test_a_known_difference_outlives_any_number_of_results_that_do_not_settle_it(config: Config) -> None:
    orders, lines = VerifiedStream("public.orders", "equal"), VerifiedStream("public.lines", "equal")
    said(config, 300, DIFFERS, replace(DIFFERS, stream="public.lines"))
    said(config, 299, lines, by_schedule=False)
    for hour in range(2 * reports.KEPT):
        said(config, 200 - hour, orders, sample=0.05)
    assert reports.known(config.state) == {"public.orders": DIFFERS, "public.lines": lines}
    assert measured(instance(config))[metrics.VERIFY_DIFFERENCES.name] == 3
    assert len(list(reports.kept(config.state))) == reports.KEPT + 2
    said(config, 1, orders)  # all of its rows
    assert len(list(reports.kept(config.state))) == reports.KEPT
    assert reports.known(config.state) == {"public.orders": orders}


def test_what_is_compared_by_hand_is_heard_of_by_an_instance_at_work(config: Config) -> None:
    said(config, 2, DIFFERS)
    at_work = instance(config)
    assert measured(at_work)[metrics.VERIFY_DIFFERENCES.name] == 3
    said(config, 1, VerifiedStream("public.orders", "equal"), by_schedule=False)
    at_work.hear()
    assert measured(at_work)[metrics.VERIFY_DIFFERENCES.name] == 0


def test_a_table_that_is_compared_no_more_has_no_known_difference(config: Config) -> None:
    said(config, 3, DIFFERS)
    said(config, 2, VerifiedStream("public.orders", "not compared", "it is loaded whole", "by its mode"))
    assert measured(instance(config))[metrics.VERIFY_DIFFERENCES.name] == 0


def test_a_stream_that_was_taken_out_of_the_pipeline_is_no_trouble_of_it(config: Config) -> None:
    said(config, 3, DIFFERS, replace(DIFFERS, stream="elsewhere.orders"))
    assert {labels["stream"] for _, labels, _ in instance(config).samples() if labels} == {"public.orders"}
