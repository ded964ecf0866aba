"""How a table's rows are laid out over its files: by which partitions, and in which order inside each.

A layout names columns by their ids, as the table's metadata does, and it goes to the tasks that write files.
Files say by which layout they were written, so that it does not matter if it is another one when they are
committed: the spec of partitions stays in the metadata as long as a file has it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

import pyarrow as pa

from penstock.core.partition_types import can_sort, fits
from penstock.core.table_options import Transform
from penstock.destinations.iceberg_schema import names_by_id

_TRANSFORM = re.compile(r"(?P<name>[a-z]+)(?:\[(?P<width>\d+)\])?")


@dataclass(frozen=True, slots=True)
class Partition:
    """One field of a spec of partitions."""

    field_id: int
    source_id: int  # of the column
    transform: Transform
    width: int = 0


@dataclass(frozen=True, slots=True)
class Ordering:
    source_id: int
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """None and nothing: files in no partition, with their rows in any order."""

    spec_id: int | None = None
    partitions: tuple[Partition, ...] = ()
    order_id: int | None = None
    ordering: tuple[Ordering, ...] = ()

    @property
    def is_plain(self) -> bool:
        return not self.partitions and not self.ordering

    def fitting(self, columns: pa.Schema) -> Layout:
        """As much of it as rows of these columns can be written by.

        A column that it names may be gone, or have another type and so another id; then files are in no
        partition until the table's metadata has followed.
        """
        types = {number: columns.field(name).type for number, name in names_by_id(columns).items()}
        layout = self
        for each in self.partitions:
            if each.source_id not in types or not fits(each.transform, types[each.source_id]):
                layout = replace(layout, spec_id=None, partitions=())
        for by in self.ordering:
            if by.source_id not in types or not can_sort(types[by.source_id]):
                layout = replace(layout, order_id=None, ordering=())
        return layout


PLAIN = Layout()


def layout_from_json(spec: Mapping[str, Any], order: Mapping[str, Any]) -> Layout:
    """From a spec and an order as Iceberg writes them; what we cannot write by is left out of it."""
    partitions = [_partition(field) for field in spec["fields"]]
    orderings = [_ordering(field) for field in order["fields"]]
    layout = PLAIN
    if partitions and None not in partitions:
        known = tuple(each for each in partitions if each is not None)
        layout = replace(layout, spec_id=int(spec["spec-id"]), partitions=known)
    if orderings and None not in orderings:
        by = tuple(each for each in orderings if each is not None)
        layout = replace(layout, order_id=int(order["order-id"]), ordering=by)
    return layout


def _partition(field: Mapping[str, Any]) -> Partition | None:
    match = _TRANSFORM.fullmatch(field["transform"])
    for transform in get_args(Transform):
        if match and match["name"] == transform and "source-id" in field:
            return Partition(field["field-id"], field["source-id"], transform, int(match["width"] or 0))
    return None


def _ordering(field: Mapping[str, Any]) -> Ordering | None:
    if field["transform"] != "identity" or "source-id" not in field:
        return None
    return Ordering(field["source-id"], field["direction"] == "desc", field["null-order"] == "nulls-first")
