"""Requests of shapes as they are read: every rule of the contract about parameters, without a server."""

from __future__ import annotations

import gzip
import json
import math
from typing import Any
from urllib.parse import quote, urlencode

import brotli
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.offset import LogOffset
from penstock.shapes.http.admission import Admission
from penstock.shapes.http.answers import matching
from penstock.shapes.http.compression import Body, Compressor, accepted
from penstock.shapes.http.cursor import EPOCH_S, next_cursor
from penstock.shapes.http.door import route_of
from penstock.shapes.http.fields import BodyError, QueryError, parse_query, with_body
from penstock.shapes.http.request import (
    PARAMS_BYTES_MAX,
    RequestError,
    ShapeRequest,
    parse_delete,
    parse_request,
)
from penstock.shapes.source.subset import SubsetRequest


def request(**fields: str) -> ShapeRequest:
    given = {"table": "items", "offset": "0_0", "handle": "1-1", **fields}
    return parse_request(parse_query(urlencode(given).encode()))


def errors(query: str) -> dict[str, Any]:
    with pytest.raises(RequestError) as caught:
        parse_request(parse_query(query.encode()))
    return caught.value.errors


@given(st.dictionaries(st.text(min_size=1).filter(lambda name: "[" not in name), st.text()))
def test_fields_are_read_as_they_were_sent(fields: dict[str, str]) -> None:
    encoded = {
        name.encode("utf-8", "replace").decode(): value.encode("utf-8", "replace").decode()
        for name, value in fields.items()
    }
    assert dict(parse_query(urlencode(encoded).encode())) == encoded


def test_brackets_make_maps_and_the_last_of_a_name_counts() -> None:
    fields = parse_query(b"params[1]=a&params%5B2%5D=b%26&x=1&x=2&&flag")
    assert fields == {"params": {"1": "a", "2": "b&"}, "x": "2", "flag": ""}


@pytest.mark.parametrize("query", [b"table=%ff", b"\xff=1", b"&".join([b"a=1"] * 3000)])
def test_a_query_that_is_no_text_or_endless_is_refused(query: bytes) -> None:
    with pytest.raises(QueryError):
        parse_query(query)


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("-1", LogOffset.BEFORE_ALL),
        ("0_0", LogOffset.FIRST),
        ("0_inf", LogOffset.LAST_BEFORE_REAL),
        ("26800664_4", LogOffset(26800664, 4)),
        ("0_02", LogOffset(0, 2)),
        ("5_inf", LogOffset(5, math.inf)),
    ],
)
def test_offsets(text: str, offset: LogOffset) -> None:
    assert request(offset=text).offset == offset
    assert request(offset="now").offset == "now"


@pytest.mark.parametrize(
    "text",
    ["10", "1_2_3", "0_-1", "0_0 ", "x", "1_", "_1", "²_1", "1_٣", "9" * 19 + "_0", "1_" + "9" * 30, "-2"],
)
def test_what_is_no_offset_is_refused(text: str) -> None:
    assert errors(urlencode({"table": "t", "offset": text, "handle": "h"})) == {
        "offset": ["has invalid format"]
    }


def test_what_is_missing_is_said() -> None:
    assert errors("table=t") == {"offset": ["can't be blank"]}
    assert errors("offset=-1") == {"table": ["can't be blank"]}
    assert errors("offset=-1&table=") == {"table": ["can't be blank"]}
    assert errors("table=t&offset=0_0") == {"handle": ["can't be blank when offset != -1"]}


def test_a_handle_at_the_start_is_only_a_cache_buster() -> None:
    assert request(offset="-1").handle is None
    assert request(offset="now").handle is None
    assert request().handle == "1-1"


@pytest.mark.parametrize(("text", "live"), [("true", True), ("", True), ("banana", True), ("false", False)])
def test_live_is_anything_but_false(text: str, live: bool) -> None:
    assert request(live=text).live is live


def test_what_cannot_be_live() -> None:
    assert errors("table=t&offset=-1&live=true") == {"live": ["can't be true when offset == -1"]}
    assert errors("table=t&offset=now&live") == {"live": ["can't be true when offset is 'now'"]}
    for name in ("live_sse", "experimental_live_sse"):
        assert errors(f"table=t&offset=0_0&handle=h&{name}=true") == {
            "live_sse": ["can't be true unless live is also true"]
        }
        assert request(live="true", **{name: "true"}).sse


@pytest.mark.parametrize("name", ["replica", "log", "experimental_compaction"])
def test_a_value_that_is_none_of_the_choices_is_invalid(name: str) -> None:
    assert errors(f"table=t&offset=-1&{name}=banana") == {name: ["is invalid"]}


def test_fields_that_must_be_text_are_no_maps() -> None:
    for name in ("table", "offset", "where", "columns", "handle"):
        assert errors(f"table=t&offset=-1&{name}[x]=1") == {name: ["is invalid"]}
    assert errors("table=t&offset=-1&params=1") == {"params": ["is invalid"]}


def test_params_are_numbered_from_one() -> None:
    query = "table=t&offset=-1&where=id=$1&params[2]=b&params[1]=a"
    assert parse_request(parse_query(query.encode())).definition.params == ("a", "b")
    assert errors("table=t&offset=-1&params[a]=1") == {"params": ["Parameters can only use numbers as keys"]}
    sequential = {"params": ["Parameters must be numbered sequentially, starting from 1"]}
    assert errors("table=t&offset=-1&params[2]=1") == sequential
    assert errors("table=t&offset=-1&params[0]=1") == sequential
    assert errors("table=t&offset=-1&params[1]=1&params[01]=2") == sequential


def test_params_of_a_shape_are_bounded_and_those_of_a_subset_by_the_body() -> None:
    """A shape keeps them for as long as it is there; a subset is read once."""
    fields = parse_query(b"table=t&offset=-1")
    half = "ä" * (PARAMS_BYTES_MAX // 4)

    def body(last: str) -> bytes:
        return orjson.dumps({"subset": {"params": {"1": half * 9}}, "params": {"1": half, "2": last}})

    held = parse_request(with_body(fields, body(half)))
    assert held.definition.params == (half, half)
    with pytest.raises(RequestError) as refused:
        parse_request(with_body(fields, body(half + "x")))
    assert refused.value.errors == {"params": ["Parameters are bigger than maximum size of 256 KiB"]}


def test_unknown_parameters_change_nothing() -> None:
    other = request(**{"cache-buster": "x", "expired_handle": "y", "subset__where_expr": "z"})
    assert other == request()


def test_a_subset_is_read_from_the_query() -> None:
    subset = request(
        subset__where="id > $1",
        subset__params='{"1":"5"}',
        subset__order_by="id",
        subset__limit="10",
        subset__offset="0",
    ).subset
    assert subset is not None
    assert (subset.where, subset.params, subset.order_by, subset.limit, subset.offset) == (
        "id > $1", ("5",), "id", 10, 0
    )  # fmt: skip
    assert request().subset is None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"limit": "0", "order_by": "id"}, {"limit": ["must be greater than 0"]}),
        ({"limit": "x", "order_by": "id"}, {"limit": ["is invalid"]}),
        ({"offset": "-1", "order_by": "id"}, {"offset": ["must be greater than or equal to 0"]}),
        ({"limit": "1"}, {"order_by": ["order_by is required when limit or offset is present"]}),
        ({"params": "{"}, {"params": ["params must be valid JSON"]}),
        ({"params": "[1]"}, {"params": ["params must be a JSON object"]}),
        ({"params": '{"a":"1"}'}, {"params": ["Parameters can only use numbers as keys"]}),
    ],
)
def test_what_is_wrong_with_a_subset_is_said_under_its_name(
    fields: dict[str, str], said: dict[str, Any]
) -> None:
    query = urlencode({f"subset__{name}": value for name, value in fields.items()})
    assert errors(f"table=t&offset=-1&{query}") == {"subset": said}


@pytest.mark.parametrize("nested", [True, False])
def test_a_body_lays_a_subset_over_the_query(nested: bool) -> None:
    subset = {"where": "id > $1", "params": {"1": 5}, "order_by": "id", "limit": 3, "offset": None}
    body = json.dumps({"subset": subset, "table": "other"} if nested else {**subset, "table": "other"})
    found = parse_request(with_body(parse_query(b"table=t&offset=-1&where=a"), body.encode()))
    assert found.definition.table == "other"
    assert found.definition.where == "a"
    assert found.subset is not None
    assert (found.subset.params, found.subset.limit, found.subset.offset) == (("5",), 3, None)


def test_an_empty_body_is_no_subset_and_columns_may_be_a_list() -> None:
    fields = parse_query(b"table=t&offset=-1")
    assert parse_request(with_body(fields, b"  ")).subset is None
    assert parse_request(with_body(fields, b"{}")).subset is None
    assert parse_request(with_body(fields, b'{"subset":{}}')).subset == SubsetRequest()
    listed = parse_request(with_body(fields, b'{"columns":["id","a\\"b"]}'))
    assert listed.definition.columns == '"id","a""b"'


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "Invalid JSON in request body"),
        (b"\xff", "Invalid JSON in request body"),
        (b"[]", "Request body must be a JSON object"),
        (b'"x"', "Request body must be a JSON object"),
        (b"[" * 100_000, "Invalid JSON in request body"),
    ],
)
def test_a_body_that_is_no_object_is_refused(body: bytes, said: str) -> None:
    with pytest.raises(BodyError) as caught:
        with_body(parse_query(b""), body)
    assert caught.value.answer["error"] == said


def test_a_delete_needs_a_definition_or_a_handle() -> None:
    assert parse_delete({"handle": "h"}).handle == "h"
    assert parse_delete({"table": "t"}).definition is not None
    with pytest.raises(RequestError) as caught:
        parse_delete({"live": "true"})
    assert caught.value.errors == {"handle": ["can't be blank when shape definition is missing"]}
    with pytest.raises(RequestError) as caught:
        parse_delete({"handle": "h", "live": "banana"})
    assert caught.value.errors == {"live": ["is invalid"]}


def test_what_waiting_clients_send_again_is_parsed_once_and_a_flood_of_fields_is_not_remembered() -> None:
    usual = b"table=items&offset=0_inf&handle=1-1&live=true"
    assert parse_query(usual) is parse_query(usual)
    many = b"&".join(b"%d" % number for number in range(500))
    assert parse_query(many) is not parse_query(many)


@pytest.mark.parametrize(
    "path",
    [
        b"/v1/shape",
        b"/v1/shape/",
        b"/v1//shape",
        b"/v1/shape//",
        b"/v1/%73hape",
        b"//v1/shape",
        b"/v1%2fshape",
    ],
)
def test_every_spelling_of_a_route_is_that_route(path: bytes) -> None:
    assert route_of(path) == "shape"


@pytest.mark.parametrize(
    "path", [b"/v1/shapes", b"/V1/shape", b"/v1/shape/x", b"/v1/../v1/shape", b"/x" * 500]
)
def test_other_paths_are_no_route(path: bytes) -> None:
    assert route_of(path) == "none"


def test_cursors_are_the_end_of_the_interval_and_move_on_past_the_client_s_own() -> None:
    now = EPOCH_S + 1001.5
    assert next_cursor(now, 20, None) == 1020
    assert next_cursor(now, 20, 1000) == 1020
    assert next_cursor(now, 20, 1020, lambda low, high: low) == 1021
    assert next_cursor(now, 20, 5000, lambda low, high: high) == 5000 + 3600
    assert next_cursor(now, 0.5, None) == 0


@pytest.mark.parametrize(
    ("header", "encoding"),
    [
        (b"", None),
        (b"gzip", "gzip"),
        (b"gzip, deflate, br", "br"),
        (b"br;q=0.5, gzip", "gzip"),
        (b"br;q=0, gzip;q=0", None),
        (b"*", "br"),
        (b"*;q=0", None),
        (b"identity", None),
        (b"gzip;q=x", None),
    ],
)
def test_the_best_encoding_that_a_client_takes(header: bytes, encoding: str | None) -> None:
    assert accepted(header) == encoding


@given(st.lists(st.binary(max_size=2000)))
def test_what_is_compressed_comes_back(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    gzipped, brotlied = Compressor("gzip"), Compressor("br")
    assert gzip.decompress(b"".join(map(gzipped.add, pieces)) + gzipped.finish()) == whole
    assert brotli.decompress(b"".join(map(brotlied.add, pieces)) + brotlied.finish()) == whole
    assert gzip.decompress(Body(whole).encoded("gzip")) == whole
    assert brotli.decompress(Body(whole).encoded("br")) == whole


def test_etags_are_compared_one_by_one() -> None:
    assert matching(b'"a:b:c", "d"', b"d") == b"d"
    assert matching(b"a:b:c", b"a:b:c") == b"a:b:c"
    assert matching(b'"a:b:cd"', b"a:b:c") is None
    assert matching(b'W/"a:b:c"', b"a:b:c") == b"a:b:c"
    assert matching(b'"x", W/"a:b:c:br"', b"a:b:c") == b"a:b:c:br"
    assert matching(b"*", b"a:b:c") == b"a:b:c"


def test_kinds_of_requests_are_counted_apart() -> None:
    admission = Admission(1, 1)
    assert admission.enter("initial")
    assert not admission.enter("initial")
    assert admission.enter("existing")
    admission.leave("initial")
    assert admission.enter("initial")


def test_a_secret_is_any_text() -> None:
    assert parse_query(f"secret={quote('a&b=ü')}".encode())["secret"] == "a&b=ü"
