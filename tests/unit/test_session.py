"""How work is shared out, and which settings a session gets."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from penstock.lake.session import (
    LOG_BYTES_MAX,
    balanced,
    is_on_one_machine,
    of_this_attempt,
    session_settings,
    shorten_log,
)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=60), st.integers(1, 12))
def test_every_task_is_in_one_share_and_no_share_is_heavier_than_it_must_be(
    weights: list[int], count: int
) -> None:
    shares = balanced(weights, count)
    assert sorted(index for share in shares for index in share) == list(range(len(weights)))
    assert len(shares) == min(count, len(weights))
    loads = [sum(max(1, weights[index]) for index in share) for share in shares]
    # The last task that a share got went to the lightest one there was.
    assert max(loads) <= sum(max(1, weight) for weight in weights) / count + max(1, *weights, 1)


def test_tasks_of_equal_weight_are_spread_evenly() -> None:
    assert sorted(map(len, balanced([1] * 200, 8))) == [25] * 8


def test_a_heavy_task_has_a_share_of_its_own() -> None:
    assert [3] in balanced([1, 1, 1, 100, 1, 1], 2)


def test_the_pipeline_file_wins_over_our_settings_but_for_javas_options() -> None:
    conf = {"spark.driver.memory": "3g", "spark.driver.extraJavaOptions": "-Dx=1"}
    settings = session_settings("local[2]", conf)
    assert settings["spark.driver.memory"] == "3g"
    assert settings["spark.driver.extraJavaOptions"].endswith(" -Dx=1")
    assert "log4j2" in settings["spark.driver.extraJavaOptions"]


def test_nothing_keeps_spark_from_running_a_lost_task_again() -> None:
    assert not {name for name in session_settings("spark://h:7077", {}) if "maxFailures" in name}


def test_only_on_one_machine_is_the_driver_called_by_its_local_address() -> None:
    assert session_settings("local[*]", {})["spark.driver.host"] == "127.0.0.1"
    assert "spark.driver.host" not in session_settings("spark://h:7077", {})
    assert not is_on_one_machine("k8s://https://localhost")


def test_what_java_prints_stays_bounded_while_it_is_printed(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    shorten_log(log)
    with open(log, "ab", buffering=0) as printing:
        printing.write(b"short")
        shorten_log(log)
        assert log.read_bytes() == b"short"
        printing.write(b"x" * LOG_BYTES_MAX)
        shorten_log(log)
        printing.write(b"after")
    assert log.read_bytes() == b"after"
    assert (tmp_path / "spark.log.1").stat().st_size == LOG_BYTES_MAX + 5


def test_outside_of_a_task_a_path_is_what_it_is() -> None:
    assert of_this_attempt(Path("a/b.parquet")) == Path("a/b.parquet")
