"""Which columns can be partitions, and by which transform; which can be sorted by.

That is Iceberg's rule, less what cannot be exact: a double is no partition, because 0.0 and -0.0 are equal
to a reader and two partitions to Iceberg.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.types as pt

from penstock.core.table_options import Transform


def fits(transform: Transform, kind: pa.DataType) -> bool:
    """Whether values of a type can be partitions by this transform."""
    return any(test(kind) for test in _FITS[transform])


def can_sort(kind: pa.DataType) -> bool:
    return not pt.is_nested(kind)


_Test = Callable[[pa.DataType], bool]
_WHOLE: tuple[_Test, ...] = (pt.is_integer, pt.is_decimal, pt.is_string, pt.is_binary)
_FITS: Mapping[Transform, tuple[_Test, ...]] = {
    "identity": (*_WHOLE, pt.is_boolean, pt.is_date, pt.is_time, pt.is_timestamp),
    "bucket": (*_WHOLE, pt.is_date, pt.is_time, pt.is_timestamp),
    "truncate": _WHOLE,
    "year": (pt.is_date, pt.is_timestamp),
    "month": (pt.is_date, pt.is_timestamp),
    "day": (pt.is_date, pt.is_timestamp),
    "hour": (pt.is_timestamp,),
}
