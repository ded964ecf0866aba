"""Texts of columns as days, times and intervals: what Postgres reads of them, or no answer.

Spellings are drawn at random, most of them nearly right; Postgres is asked about each. Some texts mean
another moment every day: those fail at the source too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import psycopg
import pyarrow as pa
import pytest

from penstock.core.schema import SourceColumn
from penstock.core.where import Condition, EvaluationError
from penstock.core.where.conversions import function
from penstock.core.where.kinds import Kind
from penstock.core.where.single import reader
from penstock.sources.postgres.connection import Connection, connect
from penstock.sources.postgres.embedded import EmbeddedPostgres

pytestmark = pytest.mark.integration

SEED = 6
TEXTS = 15_000
NUMBERS = (
    *("0", "1", "00", "5", "12", "24", "31", "60", "99", "2024", "0001", "0000", "12024", "1234567"),
    *("99999999", "123456789", "5.5", "0.25", ".5", "1.123456", "-1", "+1", "-0.5", "2e3"),
)
PARTS = (
    *("T", "z", "Z", " ", "  ", "\t", "\n", "\x1c", "\u00a0", "-", ":", "/", ".", "+", "P", "BC", "ago"),
    *(
        "infinity",
        "-infinity",
        "+infinity",
        "epoch",
        "allballs",
        "UTC",
        " Europe/Berlin",
        "EST",
        "Jan",
        "am",
        "@",
    ),
)
UNITS = (
    *("century", "centuries", "centurie", "centurys", "decade", "years", "yr", "y", "months", "mon", "mons"),
    *("week", "w", "day", "days", "d", "hour", "hrs", "h", "minutes", "min", "m", "second", "secs", "s"),
    *("milliseconds", "ms", "microsecond", "us", "YEAR", "Days", "dayss"),
)
ZONES = (
    *("", "Z", "z", " Z", "+02", "-0230", " -02:30", "+16", "+15:59", "-15:60", " +01", "+2"),
    *("UTC", "+02:03:04"),
)
KINDS = (Kind.DATE, Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.INTERVAL)
_READ = """
CREATE FUNCTION pg_temp.read(written text, type text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE answer text;
BEGIN
  EXECUTE format('SELECT ($1::%s)::text', type) INTO answer USING written;
  RETURN answer;
EXCEPTION WHEN OTHERS THEN RETURN NULL;
END $$
"""


class Spellings:
    """Texts like days, times and intervals, from one seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def text(self) -> str:
        makers = (self._day, self._clock, self._moment, self._quantities, self._iso, self._parts)
        return self._spoilt(self._random.choice(makers)())

    def _day(self) -> str:
        pick = self._random
        year = pick.choice(("2024", "0001", "9999", f"{pick.randrange(10_000):04}"))
        return f"{year}-{pick.randrange(14):02}-{pick.randrange(33):02}"

    def _clock(self) -> str:
        pick = self._random
        parts = [f"{pick.randrange(limit):02}" for limit in (26, 62, 62)][: pick.choice((2, 3, 3, 3))]
        digits = "".join(pick.choice("0123456789") for _ in range(pick.randrange(8)))
        return ":".join(parts) + (f".{digits}" if pick.random() < 0.4 else "")

    def _moment(self) -> str:
        return self._day() + self._random.choice((" ", "T", "t", "  ", "")) + self._clock() + self._zone()

    def _zone(self) -> str:
        return self._random.choice(ZONES)

    def _quantities(self) -> str:
        pick = self._random
        found = [
            pick.choice((*NUMBERS, *map(str, range(40)))) + pick.choice((" ", "", "\t")) + pick.choice(UNITS)
            for _ in range(pick.randint(1, 3))
        ]
        clock = [pick.choice(("", "-", "+")) + self._clock()] if pick.random() < 0.4 else []
        return " ".join([*found, *clock])

    def _iso(self) -> str:
        pick = self._random

        def quantities(units: str) -> str:
            return "".join(
                pick.choice(("", "", "-", "+")) + pick.choice(NUMBERS) + unit
                for unit in units
                if pick.random() < 0.4
            )

        return f"P{quantities('YMWD')}{pick.choice(('', 'T'))}{quantities('HMS')}"

    def _parts(self) -> str:
        return "".join(self._random.choice(PARTS + NUMBERS) for _ in range(self._random.randint(1, 4)))

    def _spoilt(self, text: str) -> str:
        pick, place = self._random, self._random.randrange(len(text) + 1)
        match pick.randrange(12):
            case 0:
                return text[:place] + text[place + 1 :]
            case 1:
                return text[:place] + pick.choice(PARTS + NUMBERS) + text[place:]
            case 2:
                return pick.choice(" \n\t") + text + pick.choice(("", " ", "\x1f"))
        return text


@pytest.fixture(scope="module")
def connection(server: EmbeddedPostgres) -> Iterator[Connection]:
    found = connect(server.url())
    found.execute(_READ.encode())
    yield found
    found.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_is_what_postgres_reads_of_it_or_has_no_answer(connection: Connection, kind: Kind) -> None:
    spellings = Spellings(SEED)
    texts = sorted({spellings.text() for _ in range(TEXTS)})
    servers = connection.execute(
        "SELECT pg_temp.read(written, %s) FROM unnest(%s::text[]) WITH ORDINALITY AS t (written, n) "
        "ORDER BY n",
        [kind.value, texts],
    ).fetchall()
    convert, read = function(Kind.TEXT, kind, kind.value), reader(kind)
    answered, wrong = 0, []
    for text, (printed,) in zip(texts, servers, strict=True):
        try:
            ours = convert(text)
        except EvaluationError:
            continue
        answered += 1
        if printed is None or ours != read(printed):
            wrong.append((text, ours, printed))
    assert not wrong, f"{len(wrong)} texts are read otherwise, first {wrong[:5]}"
    assert answered > TEXTS // 100


@pytest.mark.parametrize("text", ["today", "NOW", "Tomorrow 10:00", "yesterday allballs", " now "])
@pytest.mark.parametrize("type_name", ["date", "time", "timestamp", "timestamptz"])
def test_a_text_that_hangs_on_the_clock_fails_here_and_at_the_source(
    connection: Connection, type_name: str, text: str
) -> None:
    columns = [SourceColumn("t", 25, -1, "text", "text")]
    condition = Condition.compile(f"t::{type_name} IS NOT NULL", columns, wording="electric")
    with pytest.raises(EvaluationError):
        condition.evaluate({"t": pa.array([text])}, 1)
    query = f"SELECT {condition.sql()} FROM (VALUES (%s)) AS things (t)"
    with pytest.raises(psycopg.errors.InvalidDatetimeFormat):
        connection.execute(query.encode(), [text])
    assert connection.execute(query.encode(), [None]).fetchall() == [(False,)]
