"""What a format is made of, as arrays: the constant text, which columns, in which form.

A format is a function of a table's version and a view (`Format`); it decides once per version, and the
compiled loops do the rest. A column that has to be made into something else first (a time into a number, say)
has a `Converter`: from the source's texts to what stands in the event, and which of them cannot be said.
Formats are written for common types and texts (`values.common_types`): none of them knows the source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.capture.transactions import TableVersion
from penstock.core.schema import SourceColumn
from penstock.sources.types import common_type
from penstock.streams.encoding import row_kernels
from penstock.streams.encoding.view import StreamView
from penstock.streams.events import Bytes, Int64s
from penstock.values.common_types import CommonType

Flags: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Converted:
    """`bad` marks what the format cannot say; None: it can say everything."""

    values: pa.Array
    bad: Flags | None = None


Converter: TypeAlias = Callable[[pa.StringArray], Converted]


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """How a column is written: its form, what is done to its texts before, and the texts around it."""

    form: int
    value: bytes  # before a value that is there
    null: bytes
    unchanged: bytes  # in place of a value the source did not send
    unknown: bytes  # in place of a value of an old row that the source did not tell
    convert: Converter | None = None


#: A column that the rows' version does not have, in formats that leave it out.
NOT_THERE = ColumnLayout(row_kernels.RAW, b"", b"", b"", b"")


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the envelope, with the texts around it: before it, if it is there, and in its place."""

    field: int
    form: int = row_kernels.RAW
    lead: bytes = b""
    present: bytes = b""
    absent: bytes = b""


@dataclass(frozen=True, slots=True)
class Packed:
    """Texts one after the other, and where each ends."""

    text: Bytes
    ends: Int64s

    @classmethod
    def of(cls, texts: Iterable[bytes]) -> Packed:
        parts = list(texts)
        return cls(
            np.frombuffer(b"".join(parts), np.uint8).copy(),
            np.cumsum([len(part) for part in parts], dtype=np.int64),
        )


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The columns of a row or a key, as numbers of cells; `known`: in a row of which only the key is told."""

    cells: Int64s
    forms: Bytes
    known: Flags
    texts: Packed
    opening: int
    closing: int

    @classmethod
    def of(
        cls, columns: Sequence[ColumnLayout], cells: Sequence[int], known: Sequence[bool], braces: str
    ) -> RowLayout:
        opening, closing = (ord(brace) for brace in braces) if braces else (0, 0)
        texts = ((each.value, each.null, each.unchanged, each.unknown) for each in columns)
        return cls(
            np.array(cells, np.int64),
            np.array([each.form for each in columns], np.uint8),
            np.array(known, np.bool_),
            Packed.of(text for four in texts for text in four),
            opening,
            closing,
        )


@dataclass(frozen=True, slots=True)
class EventLayout:
    """`names` are the columns that are read, those of the stream first; `converters` belong to them."""

    names: tuple[str, ...]
    converters: tuple[Converter | None, ...]
    row: RowLayout
    key: RowLayout
    key_head: Bytes
    key_tail: Bytes
    program: npt.NDArray[np.uint8]
    program_texts: Packed
    missing_names: Packed
    key_headers: tuple[str, str] | None


@dataclass(frozen=True, slots=True)
class LayoutParts:
    """What a format says of itself: `of_row` and `of_key` by column, in the order of the view.

    `key_headers`: where a key changes, the header of the create that has the old key, and that of the delete
    that has the new one.
    """

    fields: Sequence[Field]
    of_row: Sequence[ColumnLayout]
    of_key: Sequence[ColumnLayout]
    missing_names: Sequence[bytes]
    row_braces: str = ""
    key_braces: str = ""
    key_head: bytes = b""
    key_tail: bytes = b""
    key_headers: tuple[str, str] | None = None


class Format(Protocol):
    def parts(self, version: TableVersion, view: StreamView) -> LayoutParts:
        """May ask others, such as a registry of schemas; called once for each version and view."""


def event_layout(parts: LayoutParts, view: StreamView) -> EventLayout:
    names = view.columns + tuple(name for name in view.key if name not in view.columns)
    converters = {name: column.convert for name, column in zip(view.key, parts.of_key, strict=True)}
    converters |= {name: column.convert for name, column in zip(view.columns, parts.of_row, strict=True)}
    fields = parts.fields
    return EventLayout(
        names,
        tuple(converters[name] for name in names),
        RowLayout.of(
            parts.of_row,
            range(len(view.columns)),
            [name in view.key for name in view.columns],
            parts.row_braces,
        ),
        RowLayout.of(parts.of_key, [names.index(name) for name in view.key], [], parts.key_braces),
        np.frombuffer(parts.key_head, np.uint8).copy(),
        np.frombuffer(parts.key_tail, np.uint8).copy(),
        np.array([(each.field, each.form) for each in fields], np.uint8),
        Packed.of(text for each in fields for text in (each.lead, each.present, each.absent)),
        Packed.of(parts.missing_names),
        parts.key_headers,
    )


def common(column: SourceColumn | None) -> CommonType:
    """None: a column that the row's version does not have."""
    return CommonType("") if column is None else common_type(column)


def as_printed(kind: CommonType) -> Converter | None:
    """Common texts, whether or not they are values of the type; None: as they are."""
    text = kind.text
    return None if text is None else lambda texts: Converted(text(texts).values)


def from_common(kind: CommonType, convert: Converter | None) -> Converter | None:
    """`convert`, which is for common texts, for those of the source; what is no value is bad."""
    text = kind.text
    if text is None:
        return convert

    def converted(texts: pa.StringArray) -> Converted:
        values, bad = text(texts)
        if convert is None:
            return Converted(values, bad)
        made = convert(values)
        if bad is None or made.bad is None:
            return Converted(made.values, made.bad if bad is None else bad)
        return Converted(made.values, made.bad | bad)

    return converted
