"""Places of MySQL and MongoDB as numbers and back, and where to go on on another server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.binlog_place import BinlogPlace, Numbering
from penstock.core.errors import AnotherSourceError, PenstockError, PositionGoneError, SourceError
from penstock.core.failover import Server, Standing, go_on
from penstock.core.position import Lsn
from penstock.core.resume_token import ResumeToken
from penstock.sources.mysql.server import place_of

places = st.builds(
    BinlogPlace,
    st.integers(1, 2_000_000).map(lambda number: f"mysql-bin.{number:06d}"),
    st.integers(4, 2**32 - 1),
)


@given(places, places)
def test_a_place_is_a_number_that_grows_with_it(a: BinlogPlace, b: BinlogPlace) -> None:
    assert BinlogPlace.of_number("mysql-bin", a.number) == a
    assert BinlogPlace.parse(str(a)) == a
    assert (a.number < b.number) == ((len(a.name), a.name, a.pos) < (len(b.name), b.name, b.pos))


def test_a_number_still_shows_file_and_byte() -> None:
    place = BinlogPlace.parse("mysql-bin.000070:772591")
    assert str(Lsn(place.number)) == f"{70:X}/{772591:X}"
    assert BinlogPlace.parse("a.b.c.999999:4").number < BinlogPlace.parse("a.b.c.1000000:4").number


@given(places, st.lists(places, min_size=1, max_size=5), st.lists(places, min_size=1, max_size=5))
def test_positions_grow_on_whatever_server_the_log_is_read(
    begin: BinlogPlace, here: list[BinlogPlace], there: list[BinlogPlace]
) -> None:
    numbering = Numbering.beginning_at(begin)
    read = [begin, *sorted((p for p in here if p.number > begin.number), key=lambda p: p.number)]
    seen = [numbering.position(place) for place in read]
    there.sort(key=lambda place: place.number)
    moved = Numbering.going_on(seen[-1], there[0])
    seen += [moved.position(place) for place in there]
    assert seen == sorted(seen)
    assert seen[len(read)] > seen[len(read) - 1]
    assert [moved.place(moved.position(place)) for place in there] == there
    assert numbering.place(seen[0]) == begin


def test_a_numbering_refuses_places_that_are_not_its_own() -> None:
    numbering = Numbering.going_on(Lsn(10**15), BinlogPlace.parse("bin.000001:4"))
    with pytest.raises(ValueError, match="not of the files"):
        numbering.position(BinlogPlace.parse("other.000001:4"))
    with pytest.raises(ValueError, match="before this numbering"):
        numbering.place(Lsn(5))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mysql-bin.000070",
        "mysql-bin:5",
        "mysql-bin.000070:-1",
        "mysql-bin.000070:x",
        "../mysql-bin.000001:4",
        f"mysql-bin.000001:{2**32}",
        "mysql-bin.4294967296:4",
        "mysql-bin.000001:٣",
    ],
)
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="binlog"):
        BinlogPlace.parse(text)


def test_a_place_that_a_server_says_beyond_four_bytes_is_an_error_with_a_remedy() -> None:
    assert place_of("bin.000001", 2**32 - 1).pos == 2**32 - 1
    with pytest.raises(SourceError, match="4 GiB") as refused:
        place_of("bin.000001", 2**32)
    assert "FLUSH BINARY LOGS" in refused.value.remedy


# Resume tokens

MARK = "82673F82FE000000022B0429296E1404"
EVENT = "82612E8513000000012B022C0100296E5A1004A5093ABB38FE4B9EA67F01BB1A96D812463C5F6964003C5F5F5F78000004"


def test_a_token_says_its_time_and_its_kind() -> None:
    mark, event = ResumeToken(MARK), ResumeToken(EVENT)
    assert (mark.time, mark.kind) == (0x673F82FE << 32 | 2, "mark")
    assert (event.time, event.kind) == (0x612E8513 << 32 | 1, "event")
    assert mark.position_behind == mark.time
    assert event.position_behind == event.time + 1
    assert ResumeToken(MARK.lower()).kind == "mark"
    made = ResumeToken.before(Lsn(0x6AFAA23800000007))
    assert made.data == "826AFAA238000000072B0229296E04"  # as a server wrote it
    assert (made.kind, made.position_behind) == ("mark", made.time)
    assert ResumeToken("82612E851300000001").kind is None
    assert ResumeToken("82612E85130000000146645F6964").kind is None


def test_a_token_fits_its_own_position_only() -> None:
    token = ResumeToken(MARK)
    assert [token.fits(Lsn(token.time + step)) for step in (-1, 0, 1, 2)] == [False, True, True, False]


@pytest.mark.parametrize(
    "text", ["", "82", "8261", "91612E851300000001", "82612E85130000000Z", "82612E8513000000012"]
)
def test_what_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="resume token"):
        ResumeToken(text)


@given(
    st.integers(1, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(1, 2**32 - 1), st.integers(0, 2**32 - 1)
)
def test_tokens_order_as_their_times_do(a: int, a_counter: int, b: int, b_counter: int) -> None:
    first, second = (
        ResumeToken(f"82{a:08X}{a_counter:08X}2B0429"),
        ResumeToken(f"82{b:08X}{b_counter:08X}2B0429"),
    )
    assert (first.time < second.time) == (first.data < second.data)


# Where to go on (correctness 53)

A, B = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "00000000-0000-0000-0000-00000000000b"


def at(text: str) -> BinlogPlace:
    return BinlogPlace.parse(text)


OURS = Standing(A, at("bin.000005:500"), f"{A}:1-77")
BARE = Standing(A, at("bin.000005:500"))


def mysql(uuid: str = A, first: str = "bin.000003:4", last: str = "bin.000006:900", **sets: str) -> Server:
    return Server("mysql", uuid, at(first), at(last), **sets)


@pytest.mark.parametrize(
    ("standing", "server", "expected"),
    [
        pytest.param(BARE, mysql(), "by place", id="same server, no GTIDs"),
        pytest.param(OURS, mysql(executed=f"{A}:1-90"), "by place", id="same server"),
        pytest.param(OURS, mysql(executed=f"{A}:1-77"), "by place", id="same server, nothing new"),
        pytest.param(
            OURS,
            mysql(B, "b.000001:4", "b.000001:9", executed=f"{A}:1-90,{B}:1-5"),
            "by gtid",
            id="another server that has all of ours",
        ),
        pytest.param(
            OURS,
            mysql(B, "bin.000001:4", executed=f"{A}:1-90", purged=f"{A}:1-77"),
            "by gtid",
            id="another server that purged just what we have",
        ),
        pytest.param(
            OURS,
            mysql(first="bin.000006:4", executed=f"{A}:1-80", purged=f"{A}:1-70"),
            "by gtid",
            id="same server, our file is purged, and nothing that we lack",
        ),
        pytest.param(Standing("", at("bin.000005:500")), mysql(), "by place", id="a place of another tool"),
        pytest.param(
            Standing(A, at("bin.000005:500"), "0-1-77"),
            Server("mariadb", B, at("b.000001:4"), at("b.000002:9"), "0-1-80,0-2-90", "0-1-60"),
            "by gtid",
            id="MariaDB, another server",
        ),
        pytest.param(
            Standing(A, at("bin.000005:500"), "0-2-90"),
            Server("mariadb", B, at("b.000001:4"), at("b.000002:9"), "0-1-80,0-2-90", "0-1-60"),
            "by gtid",
            id="MariaDB, another server that purged what a third one wrote",
        ),
    ],
)
def test_the_place_is_found_again(standing: Standing, server: Server, expected: str) -> None:
    assert go_on(standing, server) == expected


@pytest.mark.parametrize(
    ("standing", "server", "error", "message"),
    [
        pytest.param(
            OURS,
            mysql(B, executed=f"{A}:1-70,{B}:1-9"),
            AnotherSourceError,
            f"already delivered are missing there.*\n.*{A}:71-77",
            id="failover that lost transactions",
        ),
        pytest.param(
            OURS,
            mysql(executed=f"{A}:1-50"),
            AnotherSourceError,
            "missing there",
            id="same server, restored and come as far again",
        ),
        pytest.param(
            OURS,
            mysql(B, executed=f"{A}:1-90", purged=f"{A}:1-80"),
            PositionGoneError,
            f"purged transactions.*\n.*{A}:78-80",
            id="purged beyond ours",
        ),
        pytest.param(
            OURS,
            mysql(B, executed=f"{A}:1-90,{B}:1-3", purged=f"{B}:1-2"),
            PositionGoneError,
            f"{B}:1-2",
            id="purged of a server that we never saw",
        ),
        pytest.param(OURS, mysql(B), AnotherSourceError, "no GTIDs", id="another server without GTIDs"),
        pytest.param(
            BARE,
            mysql(B, executed=f"{A}:1-90"),
            AnotherSourceError,
            "no GTIDs",
            id="another server, and we have no GTIDs",
        ),
        pytest.param(
            BARE, mysql(first="bin.000006:4"), PositionGoneError, "is gone", id="our file is purged"
        ),
        pytest.param(
            BARE,
            mysql(last="bin.000005:499"),
            AnotherSourceError,
            "reset or restored",
            id="the binlog ends before our place",
        ),
        pytest.param(
            BARE,
            mysql(first="x.000001:4", last="x.000009:4"),
            AnotherSourceError,
            "no GTIDs",
            id="same server, files of another name",
        ),
        pytest.param(
            Standing("", at("bin.000005:500")),
            mysql(last="bin.000002:4"),
            AnotherSourceError,
            "reset or restored",
            id="another tool's place that the server does not have",
        ),
        pytest.param(
            Standing(A, at("bin.000005:500"), "0-1-77,1-1-5"),
            Server("mariadb", B, at("b.000001:4"), at("b.000002:9"), "0-1-80"),
            AnotherSourceError,
            "1-1-5",
            id="MariaDB, a domain is missing",
        ),
        pytest.param(
            Standing(A, at("bin.000005:500"), "0-1-77"),
            Server("mariadb", B, at("b.000001:4"), at("b.000002:9"), "0-1-76,0-2-80"),
            AnotherSourceError,
            "0-1-77",
            id="MariaDB, failover that lost transactions",
        ),
        pytest.param(
            Standing(A, at("bin.000005:500"), "0-1-77"),
            Server("mariadb", B, at("b.000001:4"), at("b.000002:9"), "0-1-80", "0-1-78"),
            PositionGoneError,
            "0-1-78",
            id="MariaDB, purged beyond ours",
        ),
        pytest.param(
            Standing(A, at("bin.000005:500"), "0-1-77"),
            mysql(B, executed=f"{A}:1-80"),
            SourceError,
            "cannot be read as one of MySQL",
            id="MariaDB before, MySQL now",
        ),
    ],
)
def test_a_place_that_cannot_be_found_again_is_an_error_with_a_way_out(
    standing: Standing, server: Server, error: type[PenstockError], message: str
) -> None:
    with pytest.raises(error) as caught:
        go_on(standing, server)
    assert caught.match(message)
    assert caught.value.remedy


def test_the_place_is_found_exactly_if_nothing_is_missing_and_nothing_purged() -> None:
    """Every way in which 4 transactions may be ours, executed and purged there, on another server."""

    def text(bits: int) -> str:
        return ",".join(f"{A}:{number}" for number in range(1, 5) if bits >> number - 1 & 1)

    for ours in range(1, 16):
        for executed in range(1, 16):
            for purged in range(16):
                if purged & ~executed:
                    continue  # a server purges only what it has executed
                server = mysql(B, executed=text(executed), purged=text(purged))
                can = not ours & ~executed and not purged & ~ours
                try:
                    found = go_on(Standing(A, OURS.place, text(ours)), server)
                except AnotherSourceError:
                    assert ours & ~executed
                except PositionGoneError:
                    assert not ours & ~executed
                    assert purged & ~ours
                else:
                    assert can
                    assert found == "by gtid"
