"""Common texts of decimals, bits, bytes, geometries and hstore, as Debezium's types have them, a column at a
time."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.streams.encoding import byte_kernels
from penstock.streams.encoding.cells import cells_of, is_valid, packed
from penstock.streams.encoding.layout import Converted
from penstock.streams.events import Bytes
from penstock.values import text_casts

_INT64_MAX = str(2**63 - 1)
_GEOMETRY = r"^SRID=(?P<srid>[0-9]+);(?P<wkb>[0-9a-f]+)$"
_SPECIAL_DECIMALS = {"NaN": "NAN", "Infinity": "POSITIVE_INFINITY", "-Infinity": "NEGATIVE_INFINITY"}


def named_specials(column: pa.StringArray) -> Converted:
    for text, name in _SPECIAL_DECIMALS.items():
        is_special = pc.equal(column, text)
        if pc.any(is_special).as_py():
            column = pc.replace_with_mask(column, pc.fill_null(is_special, False), pa.scalar(name))
    return Converted(column)


def base64_decimals(column: pa.StringArray, scale: int) -> Converted:
    ends, data, _, bad = byte_kernels.decimal_column(cells_of([column]), len(column), scale)
    return Converted(base64_texts(packed(ends, data, is_valid(column))), bad if bad.any() else None)


def variable_decimals(column: pa.StringArray) -> Converted:
    ends, data, scales, bad = byte_kernels.decimal_column(cells_of([column]), len(column), -1)
    values = base64_texts(packed(ends, data, is_valid(column)))
    parts = ['{"scale":', pa.array(scales).cast(pa.string()), ',"value":"', values, '"}']
    return Converted(_joined(parts, len(column)), bad if bad.any() else None)


def _joined(parts: list[pa.Array | str], count: int) -> pa.StringArray:
    arrays = [pa.array([part] * count, pa.string()) if isinstance(part, str) else part for part in parts]
    return pc.binary_join_element_wise(*arrays, "")


def base64_texts(column: pa.Array, letters: Bytes = byte_kernels.STANDARD) -> pa.StringArray:
    ends, data = byte_kernels.base64_column(cells_of([column]), len(column), letters)
    return packed(ends, data, is_valid(column), pa.string())


def base64_text(data: bytes) -> str:
    return f'"{base64_texts(pa.array([data], pa.binary()))[0].as_py()}"'


def base64_bits(column: pa.StringArray) -> Converted:
    ends, data = byte_kernels.bits_column(cells_of([column]), len(column))
    return Converted(base64_texts(packed(ends, data, is_valid(column))))


def hstore_json(column: pa.StringArray) -> Converted:
    ends, data = byte_kernels.hstore_column(cells_of([column]), len(column))
    return Converted(packed(ends, data, is_valid(column), pa.string()))


def plain_money(column: pa.StringArray) -> pa.StringArray:
    return pc.replace_substring_regex(column, "[$,]", "")


def signed_integers(column: pa.StringArray) -> Converted:
    """Integers of up to 20 digits without a sign, where 63 bits hold them."""
    lengths, longest = pc.utf8_length(column), len(_INT64_MAX)
    exceeds = pc.and_(pc.equal(lengths, longest), pc.greater(column, _INT64_MAX))
    large = pc.fill_null(pc.or_(pc.greater(lengths, longest), exceeds), False)
    bad = large.to_numpy(zero_copy_only=False)
    return Converted(column, bad if bad.any() else None)


def geometries(column: pa.StringArray) -> Converted:
    """`SRID=4326;` and WKB in hexadecimal digits."""
    found = pc.extract_regex(column, _GEOMETRY)
    bad = is_valid(column) & ~is_valid(found)
    srid, wkb = pc.struct_field(found, "srid"), pc.struct_field(found, "wkb")
    encoded = base64_texts(text_casts.bare_hex(wkb, pa.binary()).values)
    made = _joined(['{"wkb":"', encoded, '","srid":', srid, "}"], len(column))
    values = pc.if_else(found.is_valid(), made, pa.scalar(None, pa.string()))
    return Converted(values, bad if bad.any() else None)
