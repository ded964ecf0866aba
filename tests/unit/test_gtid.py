"""GTID arithmetic against a model: MySQL's sets are Python sets of transactions, MariaDB's positions maps."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.gtid import NUMBER_MAX, GtidSet
from penstock.core.mariadb_gtid import MariaDbPosition

UUIDS = ("3e11fa47-71ca-11e1-9e33-c80aa9429562", "00000000-0000-0000-0000-00000000000a")
Transaction = tuple[str, str, int]

transactions = st.sets(
    st.tuples(st.sampled_from(UUIDS), st.sampled_from(["", "dev", "_x9"]), st.integers(1, 20)), max_size=40
)


def of(model: set[Transaction]) -> GtidSet:
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for uuid, tag, number in model:
        found.setdefault((uuid, tag), []).append((number, number))
    return GtidSet(found)


def members(gtids: GtidSet) -> set[Transaction]:
    return {
        (uuid, tag, number)
        for (uuid, tag), intervals in gtids
        for first, last in intervals
        for number in range(first, last + 1)
    }


@given(transactions, transactions)
def test_sets_do_what_sets_do(a: set[Transaction], b: set[Transaction]) -> None:
    first, second = of(a), of(b)
    assert members(first | second) == a | b
    assert members(first - second) == a - b
    assert members(first & second) == a & b
    assert (first <= second) == (a <= b)
    assert (first >= second) == (a >= b)
    assert (first == second) == (a == b)
    assert bool(first) == bool(a)
    assert first.count == len(a)


@given(transactions)
def test_a_set_is_read_as_it_is_printed(model: set[Transaction]) -> None:
    assert GtidSet.parse(str(of(model))) == of(model)
    assert GtidSet.parse(str(of(model)).upper().replace(",", " ,\n")) == of(model)


@given(transactions)
def test_a_set_has_one_form(model: set[Transaction]) -> None:
    for _, intervals in of(model):
        for (_, last), (first, _) in pairwise(intervals):
            assert last + 1 < first
    assert str(of(model)) == str(of(model) | of(model))
    assert hash(of(model)) == hash(GtidSet.parse(str(of(model))))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        (" , ", ""),
        (f"{UUIDS[0]}:1-5:7", f"{UUIDS[0]}:1-5:7"),
        (f"{UUIDS[0].upper()}:5-7:1-4", f"{UUIDS[0]}:1-7"),
        (f"{UUIDS[0].replace('-', '')}:3", f"{UUIDS[0]}:3"),
        (f"{UUIDS[0]}:1,\n{UUIDS[1]}:2,{UUIDS[0]}:2", f"{UUIDS[1]}:2,{UUIDS[0]}:1-2"),
        (f"{UUIDS[0]}:1-3:Dev:1-2:9:abc:5", f"{UUIDS[0]}:1-3:abc:5:dev:1-2:9"),
        (f"{UUIDS[0]}:dev:1", f"{UUIDS[0]}:dev:1"),
        (f"{UUIDS[0]}:5-1", ""),
        (f"{UUIDS[0]}:1-{NUMBER_MAX}", f"{UUIDS[0]}:1-{NUMBER_MAX}"),
    ],
)
def test_text_as_servers_print_and_people_write_it(text: str, expected: str) -> None:
    assert str(GtidSet.parse(text)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "0-1-100",
        UUIDS[0],
        f"{UUIDS[0]}:",
        f"{UUIDS[0]}:0-5",
        f"{UUIDS[0]}:1-",
        f"{UUIDS[0]}:1-{NUMBER_MAX + 1}",
        f"{UUIDS[0]}:dev",
        f"{UUIDS[0]}:dev:abc:1",
        f"{UUIDS[0]}:9dev:1",
        f"{UUIDS[0]}:{'a' * 33}:1",
        f"{UUIDS[0]}x:1",
        f"{UUIDS[0]}:1;2",
    ],
)
def test_what_is_no_set_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="GTID"):
        GtidSet.parse(text)


def test_a_transaction_is_found_with_its_tag() -> None:
    gtids = GtidSet.parse(f"{UUIDS[0]}:1-3:dev:7")
    assert gtids.holds(UUIDS[0], 2)
    assert not gtids.holds(UUIDS[0], 7)
    assert gtids.holds(UUIDS[0], 7, "dev")
    assert not gtids.holds(UUIDS[1], 1)


def test_many_intervals_are_subtracted_in_one_walk() -> None:
    holes = GtidSet({(UUIDS[0], ""): [(number, number) for number in range(2, 400_000, 2)]})
    whole = GtidSet({(UUIDS[0], ""): [(1, 400_000)]})
    assert (whole - holes).count == 400_000 - holes.count
    assert not holes - whole


# MariaDB

domains = st.dictionaries(st.integers(0, 3), st.tuples(st.integers(1, 2), st.integers(1, 9)), max_size=4)


@given(domains, domains)
def test_positions_compare_by_domain(a: dict[int, tuple[int, int]], b: dict[int, tuple[int, int]]) -> None:
    first, second = MariaDbPosition(a), MariaDbPosition(b)
    behind = {
        d for d, last in a.items() if d not in b or b[d][1] < last[1] or (b[d][1] == last[1] and b[d] != last)
    }
    assert (first <= second) == (not behind)
    assert {domain for domain, _ in first - second} == behind
    assert {domain: last[1] for domain, last in first | second} == {
        d: max(a.get(d, (0, 0))[1], b.get(d, (0, 0))[1]) for d in a.keys() | b.keys()
    }
    assert MariaDbPosition.parse(str(first)) == first
    assert hash(MariaDbPosition.parse(str(first))) == hash(first)


def test_a_binlog_state_has_the_last_of_each_domain() -> None:
    state = MariaDbPosition.of_binlog_state("0-1-100,\n0-2-110, 3-7-12,0-4-105")
    assert str(state) == "0-2-110,3-7-12"
    with pytest.raises(ValueError, match="twice"):
        MariaDbPosition.parse("0-1-100,0-2-110")


def test_a_log_has_what_its_state_says_of_each_server() -> None:
    state = "0-1-15,0-2-20,3-7-12"
    assert not MariaDbPosition.parse("0-2-20,3-7-12").beyond_state(state)
    assert not MariaDbPosition.parse("0-1-15").beyond_state(state), "the last of one of them"
    assert not MariaDbPosition.parse("0-2-20").beyond_state("0-1-20,0-2-20"), "numbers may be equal"
    assert str(MariaDbPosition.parse("0-3-20,3-7-13,4-1-1").beyond_state(state)) == "0-3-20,3-7-13,4-1-1"
    taken_over_too_early = MariaDbPosition.parse("0-1-16").beyond_state(state)
    assert str(taken_over_too_early) == "0-1-16", "another server's numbers go on without it"
    assert str(MariaDbPosition.parse("0-4-9").beyond_state(state)) == "0-4-9", "nothing of that server"


@pytest.mark.parametrize("text", ["1", "0-1", "0-1-x", f"{2**32}-1-1", f"0-1-{2**64}", f"{UUIDS[0]}:1"])
def test_what_is_no_position_of_mariadb_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="MariaDB"):
        MariaDbPosition.parse(text)
