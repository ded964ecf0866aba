"""Values of every type of Postgres, drawn by hypothesis as one would write them: what tests put into tables.

Each type has the values where conversions go wrong (bounds, NaN, infinity, BC, 24:00, leap seconds, digits
that do not fit, empty, quoted and nested arrays, open and empty ranges) and any others. The server itself
says which texts are values of a type, so a strategy may draw some that are not.
"""

from __future__ import annotations

import json
import random

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

Texts = st.SearchStrategy[str]

#: What the types below need.
MADE = """
CREATE TYPE mood AS ENUM ('fine', 'so so', '"quoted"', '', 'ünï');
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN price AS numeric(10,2);
CREATE DOMAIN code AS char(4);
CREATE DOMAIN prices AS numeric(10,2)[];
CREATE TYPE float4range AS RANGE (subtype = float4);
CREATE EXTENSION IF NOT EXISTS hstore;
CREATE EXTENSION IF NOT EXISTS citext;
"""

_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20) | st.sampled_from(
    ["", " ", "NULL", "\\N", "\\", '"', "'", "\n", "\t", "{}", "a" * 3000, "𝄞", "\ufeff", "e\u0301"]
)


def _integers(bits: int) -> Texts:
    edges = [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, -1, 0, 1]
    return (st.sampled_from(edges) | st.integers(edges[0], edges[1])).map(str)


def _decimals(before: int, behind: int) -> Texts:
    """Up to so many digits before the point, and more behind it than there is room for."""
    digits = st.text("0123456789", max_size=before)
    fraction = st.text("0123456789", max_size=behind + 3)
    return st.builds(lambda sign, a, b: f"{sign}{a}.{b}", st.sampled_from(["", "-"]), digits, fraction)


_NOT_NUMBERS = st.sampled_from(["NaN", "Infinity", "-Infinity"])
_FLOATS = ["NaN", "Infinity", "-Infinity", "-0", "1e-45", "3.4028235e38", "5e-324", "1.7976931348623157e308"]
_DAYS = st.builds(
    lambda year, day, era: f"{year:04}-01-01{era}" if day is None else f"{year:04}-{day}{era}",
    st.integers(1, 9999)
    | st.integers(1, 4713)
    | st.sampled_from([1, 4, 1582, 1900, 1970, 2000, 9999, 294246]),
    st.sampled_from(["02-28", "02-29", "03-01", "12-31", "10-15", "06-30", "11-24", None]),
    st.sampled_from(["", "", " BC"]),
)
_CLOCKS = st.times().map(str) | st.sampled_from(
    ["00:00:00", "23:59:59.999999", "00:00:00.000001", "12:30:00.1", "24:00:00", "23:59:60"]
)
_OFFSETS = st.sampled_from(["+00", "+05:30", "-15:59:59", "+15:59", "-00:00:01"])
_FAR = st.sampled_from(["infinity", "-infinity"])
_INSTANTS = st.builds(
    lambda day, clock: f"{day.removesuffix(' BC')} {clock}{' BC' if day.endswith('BC') else ''}",
    _DAYS,
    _CLOCKS,
)
_ENDS = ["294247-01-10 04:00:54.775807", "294247-01-10 04:00:54.775808", "294276-12-31 23:59:59.999999"]
_FIRST = "4714-11-24 00:00:00 BC"
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=5,
).map(json.dumps)
_BITS = st.text("01", max_size=70)
_COORDINATES = st.floats(allow_nan=False, allow_infinity=False).map(repr) | st.sampled_from(_FLOATS)
_POINTS = st.builds(lambda x, y: f"({x},{y})", _COORDINATES, _COORDINATES)
_ADDRESSES = st.ip_addresses().map(str)
_WORDS = st.text("abcxyz' \\", min_size=1, max_size=6).map(lambda word: "'" + word.replace("'", "''") + "'")


def _quoted(text: str) -> str:
    """As an element of an array, or as a key or value of hstore."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def arrays(elements: Texts) -> Texts:
    """Of one to three dimensions, with bounds of their own, with NULL and what has to be quoted."""
    one = elements.map(_quoted) | st.just("NULL")
    flat = st.lists(one, max_size=4).map(lambda each: "{" + ",".join(each) + "}")
    two = st.tuples(one, one, one, one).map(
        lambda each: f"{{{{{each[0]},{each[1]}}},{{{each[2]},{each[3]}}}}}"
    )
    three = st.tuples(one, one).map(lambda each: f"{{{{{{{each[0]}}}}},{{{{{each[1]}}}}}}}")
    bounded = st.tuples(one, one).map(lambda each: f"[-1:0]={{{each[0]},{each[1]}}}")
    return flat | two | three | bounded


def ranges(bounds: Texts) -> Texts:
    bound = bounds.map(lambda text: f'"{text}"') | st.just("")
    opens, closes = st.sampled_from("[("), st.sampled_from("])")
    return st.builds(lambda a, low, high, b: f"{a}{low},{high}{b}", opens, bound, bound, closes) | st.just(
        "empty"
    )


def multiranges(bounds: Texts) -> Texts:
    return st.lists(ranges(bounds), max_size=3).map(lambda each: "{" + ",".join(each) + "}")


_INTS, _LONGS = _integers(32), _integers(64)
_NUMERICS = st.decimals(allow_nan=False).map(str) | _NOT_NUMBERS | _decimals(60, 40)
_DATES = _DAYS | _FAR | st.sampled_from(["4714-11-24 BC", "5874897-12-31"])
_TIMESTAMPS = _INSTANTS | _FAR | st.datetimes().map(str) | st.sampled_from([*_ENDS, _FIRST])
_TIMESTAMPTZ = _TIMESTAMPS.map(
    lambda text: text if "inf" in text or "BC" in text else f"{text}+00"
) | st.builds(lambda time, offset: f"{time}{offset}", st.datetimes().map(str), _OFFSETS)
_INTERVALS = st.builds(
    lambda months, days, us: f"{months} mons {days} days {us} us",
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**62), 2**62),
) | st.sampled_from(["infinity", "-infinity", "0", "-00:00:00.000001", "1 year -2 mons +3 days -04:05:06.7"])

_PAIRS = st.dictionaries(_TEXT, _TEXT.map(_quoted) | st.just("NULL"), max_size=4).map(
    lambda pairs: ", ".join(f"{_quoted(key)}=>{value}" for key, value in pairs.items())
)
_SNAPSHOTS = st.lists(st.integers(1, 2**60), min_size=2, max_size=5, unique=True).map(
    lambda ids: f"{min(ids)}:{max(ids)}:{','.join(map(str, sorted(ids)[:-1]))}"
)

TYPES: dict[str, Texts] = {
    "bool": st.sampled_from(["t", "f"]),
    "int2": _integers(16),
    "int4": _INTS,
    "int8": _LONGS,
    "float4": st.floats(width=32).map(repr) | st.sampled_from(_FLOATS),
    "float8": st.floats().map(repr) | st.sampled_from(_FLOATS),
    "numeric": _NUMERICS,
    "numeric(18,6)": _decimals(12, 6) | _NOT_NUMBERS,
    "numeric(38,10)": _decimals(28, 10) | _NOT_NUMBERS,
    "numeric(38,38)": _decimals(0, 38) | _NOT_NUMBERS,
    "numeric(19,0)": _decimals(19, 0) | _NOT_NUMBERS,
    "numeric(50,10)": _decimals(40, 10) | _NOT_NUMBERS,
    "numeric(3,5)": _decimals(0, 5).map(lambda text: text.replace(".", ".00")),
    "numeric(5,-2)": _decimals(7, 0),
    "price": _decimals(8, 2) | _NOT_NUMBERS,
    "date": _DATES,
    "timestamp": _TIMESTAMPS,
    "timestamp(2)": _TIMESTAMPS,
    "timestamptz": _TIMESTAMPTZ,
    "time": _CLOCKS,
    "time(3)": _CLOCKS,
    "timetz": st.builds(lambda clock, offset: f"{clock}{offset}", _CLOCKS, _OFFSETS),
    "interval": _INTERVALS,
    "bytea": st.binary(max_size=40).map(lambda value: "\\x" + value.hex()),
    "uuid": st.uuids().map(str),
    "text": _TEXT,
    "varchar(20)": _TEXT,
    "char(20)": _TEXT,
    "code": _TEXT,
    "name": _TEXT,
    '"char"': st.characters(max_codepoint=255).filter(lambda one: one != "\0")
    | st.sampled_from(["", "\\377"]),
    "json": _JSON | st.sampled_from(['{"a": 1.10,  "a":2}', "1e400", " null "]),
    "jsonb": _JSON | st.sampled_from(["1e400", "-0.0", "1.10", '"\\u00fc"']),
    "jsonpath": st.sampled_from(["$", "lax $.a[*]", "$.a ? (@ > 1)"]),
    "money": _decimals(16, 2) | st.sampled_from(["-92233720368547758.08", "92233720368547758.07"]),
    "bit(5)": st.text("01", min_size=5, max_size=5),
    "varbit": _BITS,
    "inet": _ADDRESSES | st.builds(lambda a, n: f"{a}/{n}", _ADDRESSES, st.integers(0, 128)),
    "cidr": _ADDRESSES | st.sampled_from(["10.0.0.0/8", "::/0", "0.0.0.0/0"]),
    "macaddr": st.binary(min_size=6, max_size=6).map(lambda value: value.hex(":")),
    "macaddr8": st.binary(min_size=8, max_size=8).map(lambda value: value.hex(":")),
    "int4[]": arrays(_INTS),
    "text[]": arrays(_TEXT),
    "numeric[]": arrays(_NUMERICS),
    "numeric(10,2)[]": arrays(_decimals(8, 2) | st.just("NaN")),
    "float8[]": arrays(st.floats().map(repr)),
    "timestamptz[]": arrays(_TIMESTAMPTZ),
    "bytea[]": arrays(st.binary(max_size=6).map(lambda value: "\\x" + value.hex())),
    "mood[]": arrays(st.sampled_from(["fine", "so so", '"quoted"', ""])),
    "prices": arrays(_decimals(8, 2)),
    "int4range": ranges(_INTS),
    "int8range": ranges(_LONGS),
    "numrange": ranges(_NUMERICS),
    "daterange": ranges(_DATES),
    "tsrange": ranges(_TIMESTAMPS),
    "tstzrange": ranges(_TIMESTAMPTZ),
    "float4range": ranges(st.floats(width=32).map(repr)),
    "int4multirange": multiranges(_INTS),
    "int8multirange": multiranges(_LONGS),
    "datemultirange": multiranges(_DATES),
    "tsmultirange": multiranges(_TIMESTAMPS),
    "nummultirange": multiranges(_NUMERICS),
    "tstzmultirange": multiranges(_TIMESTAMPTZ),
    "oid": st.integers(0, 2**32 - 1).map(str),
    "xid8": st.integers(0, 2**64 - 1).map(str),
    "pg_lsn": st.builds(lambda a, b: f"{a:X}/{b:X}", st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    "tid": st.builds(lambda a, b: f"({a},{b})", st.integers(0, 2**32 - 1), st.integers(0, 2**16 - 1)),
    "xid": st.integers(0, 2**32 - 1).map(str),
    "cid": st.integers(0, 2**32 - 1).map(str),
    "txid_snapshot": _SNAPSHOTS,
    "pg_snapshot": _SNAPSHOTS,
    "refcursor": _TEXT,
    "aclitem": st.sampled_from(["=r/postgres", "postgres=arwdDxt/postgres"]),
    "int2vector": st.lists(_integers(16), max_size=4).map(" ".join),
    "oidvector": st.lists(st.integers(0, 2**32 - 1).map(str), max_size=4).map(" ".join),
    "regproc": st.sampled_from(["now", "-"]),
    "regprocedure": st.sampled_from(["now()", "sum(integer)"]),
    "regoper": st.sampled_from(["||/", "!!"]),
    "regoperator": st.sampled_from(["+(integer,integer)", "-(NONE,integer)"]),
    "regclass": st.sampled_from(["pg_class", "pg_type"]),
    "regtype": st.sampled_from(["integer", "text[]", "-"]),
    "regrole": st.sampled_from(["postgres", "-"]),
    "regnamespace": st.sampled_from(["public", "pg_catalog"]),
    "regconfig": st.sampled_from(["simple", "english"]),
    "regdictionary": st.sampled_from(["simple", "english_stem"]),
    "regcollation": st.sampled_from(['"C"', '"POSIX"']),
    "regdatabase": st.sampled_from(["template1", "postgres"]),
    "point": _POINTS,
    "line": st.builds(lambda a, b: f"{{{a},{b},1}}", st.integers(-9, 9), st.integers(1, 9)),
    "lseg": st.builds(lambda a, b: f"[{a},{b}]", _POINTS, _POINTS),
    "box": st.builds(lambda a, b: f"{a},{b}", _POINTS, _POINTS),
    "path": st.lists(_POINTS, min_size=1, max_size=3).map(lambda each: "[" + ",".join(each) + "]"),
    "polygon": st.lists(_POINTS, min_size=1, max_size=3).map(lambda each: "(" + ",".join(each) + ")"),
    "circle": st.builds(lambda point, radius: f"<{point},{radius}>", _POINTS, st.floats(0, 1e9).map(repr)),
    "tsvector": st.lists(_WORDS, max_size=4).map(" ".join),
    "tsquery": st.lists(_WORDS, min_size=1, max_size=3).map(" & ".join),
    "xml": st.sampled_from(["<a/>", "text", '<a b="1">&amp;</a>', "<?xml version='1.0'?><a/>"]),
    "mood": st.sampled_from(["fine", "so so", '"quoted"', "", "ünï"]),
    "pair": st.builds(
        lambda number, text: f'({number},"{text}")', _INTS | st.just(""), st.text("ab ,(", max_size=4)
    ),
    "hstore": _PAIRS,
    "hstore[]": arrays(_PAIRS),
    "citext": _TEXT,
    "citext[]": arrays(_TEXT),
}


def drawn(texts: Texts, count: int) -> list[str]:
    """So many different ones, or all there are: the values that hypothesis would try one after the other."""
    found: dict[str, None] = {}

    @settings(
        max_examples=2 * count,
        phases=[Phase.generate],
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(texts)
    def collect(text: str) -> None:
        found[text] = None

    collect()
    chosen = list(found)
    random.shuffle(chosen)  # what is drawn first is simple
    return chosen[:count]
