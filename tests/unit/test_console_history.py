"""The console's history: what was said is there after a restart, and it takes no more than it may."""

from __future__ import annotations

import math
import sqlite3
import tracemalloc
from pathlib import Path

import pytest

from penstock.console.history import COARSE_S, FINE_KEPT_S, FINE_S, POINTS_MAX, History
from penstock.console.rates import Rates, counters_of

NOW = 1_800_000_000.0
DAY_S = 24 * 3600.0


def history(path: Path, kept_s: float = DAY_S, bytes_max: int = 200 << 20) -> History:
    return History(path / "history.sqlite", kept_s, bytes_max)


def test_points_are_there_after_a_restart_and_gaps_are_told(tmp_path: Path) -> None:
    first = history(tmp_path)
    for at in (NOW, NOW + 10, NOW + 20):
        first.add(at, {"applied_rate": at - NOW, "lag": 1.0, "unknown": math.nan})
    first.close()
    again = history(tmp_path)
    again.add(NOW + 600, {"applied_rate": 7.0})
    found = again.read(["applied_rate", "lag", "never"], NOW, NOW + 600)
    assert found["applied_rate"] == [
        (NOW, 0.0), (NOW + 10, 10.0), (NOW + 20, 20.0), (NOW + 30, None), (NOW + 600, 7.0),
    ]  # fmt: skip
    assert [value for _, value in found["lag"]] == [1.0, 1.0, 1.0, None]
    assert not [value for _, value in found["never"] if value is not None]
    again.close()


def test_a_minute_has_the_mean_of_a_rate_and_the_peak_of_a_delay(tmp_path: Path) -> None:
    kept = history(tmp_path)
    for number in range(0, 130, 10):
        kept.add(NOW + number, {"applied_rate": float(number), "lag": float(number)})
    found = kept.read(["applied_rate", "lag"], NOW - FINE_KEPT_S, NOW + 130)
    assert found["applied_rate"][:2] == [(NOW, 25.0), (NOW + 60, 85.0)]
    assert found["lag"][:2] == [(NOW, 50.0), (NOW + 60, 110.0)]
    kept.close()


def test_a_day_of_two_hundred_streams_takes_less_than_the_bar_and_old_points_go(tmp_path: Path) -> None:
    """The bar is 200 MB. What a day writes is written here at once: a row a minute, and the fine ones."""
    kept = history(tmp_path)
    names = [
        f"stream:public.table_{number:03d}/{what}" for number in range(200) for what in ("a_rate", "b", "c")
    ]
    names += [f"other:{number}" for number in range(40)]
    values = dict.fromkeys(names, 1.5)
    with kept._connection:  # a day by the same statements, without waiting for 8,640 commits
        kept._name(values, int(NOW), {})
        for at in range(int(NOW - DAY_S), int(NOW), COARSE_S):
            kept._put("coarse", at // COARSE_S * COARSE_S, values)
        for at in range(int(NOW - FINE_KEPT_S), int(NOW), FINE_S):
            kept._put("fine", at // FINE_S * FINE_S, values)
    kept.prune(NOW)
    size = kept.path.stat().st_size
    assert 5 << 20 < size < 30 << 20
    assert len(kept.read([names[0]], NOW - DAY_S, NOW)[names[0]]) > 1400
    kept.prune(NOW + DAY_S / 2)
    assert len(kept.read([names[0]], NOW - DAY_S, NOW + DAY_S)[names[0]]) < 750
    kept.prune(NOW + 3 * DAY_S)
    assert kept.names() == []
    assert kept.path.stat().st_size < 1 << 20, "space is given back"
    kept.close()


def test_it_stays_below_its_bytes_and_lets_the_oldest_go(tmp_path: Path) -> None:
    kept = history(tmp_path, bytes_max=256 << 10)
    values = {f"s{number}": 1.0 for number in range(600)}
    for number in range(120):
        kept.add(NOW + 10 * number, values)
    kept.prune(NOW + 1200)
    assert kept.path.stat().st_size <= 300 << 10
    points = kept.read(["s5"], NOW, NOW + 1200)["s5"]
    assert points
    assert points[0][0] > NOW + 300, "the oldest went"
    assert points[-1][0] == NOW + 1190
    kept.close()


def test_a_long_history_is_thinned_to_what_a_plot_shows_and_read_a_few_moments_at_a_time(
    tmp_path: Path,
) -> None:
    days, series = 4, 300
    kept = history(tmp_path, kept_s=days * DAY_S)
    names = [f"s{number}" for number in range(series)]
    moments = range(int(NOW - days * DAY_S), int(NOW), COARSE_S)
    with kept._connection:
        kept._name(names, int(NOW), {})
        kept._put("coarse", moments[0], dict.fromkeys(names, 1.0))
        copied = "INSERT INTO coarse SELECT ?, points FROM coarse WHERE at = ?"
        kept._connection.executemany(copied, [(at, moments[0]) for at in moments[1:]])
        kept._put("coarse", moments[777], {"s3": 1.0, "s4": 9.0})
    wanted = ["s3", "s4", "never", "s299"]
    tracemalloc.start()
    found = kept.read(wanted, NOW - days * DAY_S, NOW)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(moments) * series * 8 > 12 << 20, "what is read"
    assert peak < 3 << 20, f"{peak} bytes were held at once"
    assert POINTS_MAX * 0.9 < len(found["s3"]) <= POINTS_MAX
    assert max(value for _, value in found["s4"] if value is not None) == 9.0, "a peak stays one"
    assert found["s4"][-1] == (moments[-1], 1.0)
    assert {value for _, value in found["s299"]} == {1.0}
    assert found["never"] == []
    kept.close()


def test_a_moment_that_could_not_be_written_leaves_nothing_that_the_file_does_not_know(
    tmp_path: Path,
) -> None:
    kept = history(tmp_path)
    kept.add(NOW, {"old": 1.0})
    pages = int(kept._connection.execute("PRAGMA page_count").fetchone()[0])
    kept._connection.execute(f"PRAGMA max_page_count = {pages}")
    values = {f"a name that takes some room {number}": 2.0 for number in range(2000)}
    with pytest.raises(sqlite3.OperationalError, match="full"):
        kept.add(NOW + COARSE_S, values)
    assert kept.names() == ["old"]
    kept._connection.execute("PRAGMA max_page_count = 1000000")
    kept.add(NOW + COARSE_S, values)
    kept.close()
    again = history(tmp_path)
    assert set(again.names()) == {"old", *values}
    one = next(iter(values))
    assert again.read([one], NOW, NOW + COARSE_S)[one][-1] == (NOW + COARSE_S, 2.0)
    minutes = again.read(["old"], NOW - FINE_KEPT_S, NOW + COARSE_S)["old"]
    assert minutes == [(NOW, 1.0)], "the minute before is not lost with it"
    again.close()


def test_of_two_consoles_one_writes_the_other_reads_it_and_goes_on_when_it_ends(tmp_path: Path) -> None:
    first, second = history(tmp_path), history(tmp_path)
    first.add(NOW, {"a": 1.0})
    second.add(NOW, {"a": 2.0, "b": 2.0})
    first.add(NOW + 10, {"c": 1.0})
    assert second.names() == ["a", "c"]
    assert second.read(["a"], NOW, NOW + 10)["a"] == [(NOW, 1.0)]
    first.close()
    second.add(NOW + 20, {"a": 2.0, "d": 2.0})
    assert second.read(["a"], NOW, NOW + 20)["a"] == [(NOW, 1.0), (NOW + 20, 2.0)]
    assert second.names() == ["a", "c", "d"]
    second.close()


def test_a_file_that_cannot_be_read_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    path.write_bytes(b"this is no database" * 100)
    kept = history(tmp_path)
    kept.add(NOW, {"a": 1.0})
    assert kept.read(["a"], NOW - 1, NOW + 1)["a"] == [(NOW, 1.0)]
    assert (tmp_path / "history.sqlite.unreadable").exists()
    kept.close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    kept = history(tmp_path)
    assert kept.names() == []
    kept.close()


def test_rates_are_of_the_last_seconds_and_a_counter_that_fell_began_anew() -> None:
    rates = Rates()
    for second in range(20):
        rates.add(float(second), {("applied", "a"): 100.0 * second, ("applied", "b"): 5.0})
    assert rates.of("applied", "a") == 100.0
    assert rates.total("applied") == 100.0
    rates.add(20.0, {("applied", "a"): 50.0})
    assert rates.of("applied", "a") == 5.0, "50 in ten seconds"
    assert rates.of("applied", "b") is None
    rates.forget()
    assert rates.total("applied") is None


def test_counters_of_an_instance_that_says_little() -> None:
    status: dict[str, object] = {
        "capture": {"rows": None},
        "streams": [{"stream": "a.b", "rows_applied": 3}],
        "lanes": [],
    }
    assert counters_of(status) == {("applied", "a.b"): 3.0}
