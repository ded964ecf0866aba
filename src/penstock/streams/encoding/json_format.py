"""Our own JSON: small, exact, and without a schema.

Key: a JSON array of the primary key's values, in the order of its index; null without one. Value:

    {"op":"u","before":{…},"after":{…},"unchanged":["doc"],
     "source":{"schema":"public","table":"orders","lsn":"0/1A2B3C8","txid":741,
               "commit_ts":"2026-01-31T12:00:00.123456Z","tx":27440072,"op_index":2,"snapshot":false},
     "ts_ms":1769860800130}

By common types (`values.common_types`), a number stands where a double holds it exactly: int2, int4, int8 up
to 2^53 - 1 either way, float4 and float8 as the source prints them. Beyond that, and for numeric, which may
have more digits, it is a string; so are NaN and the infinities. Booleans are JSON's, json and jsonb are
embedded as they are (line breaks between tokens become blanks, so that an event is one line). Everything else
is the common text, for Postgres what it prints.

`unchanged` lists the columns that the source did not send because they are large and did not change: they are
not in `after`, and a consumer keeps what it has. In `before` stands what the source told of the old row: its
key, or all of it with `replica_identity: full`. Every value can be said, so nothing is ever refused.

Measured on one core, in batches of 4,000 rows with 11 columns: 1.3 million inserts a second (0.8 CPU-seconds
per million), 0.8 million updates with `before`; a batch of one row takes 0.15 ms.
"""

from __future__ import annotations

from json import dumps

from penstock.capture.transactions import TableVersion
from penstock.streams.encoding import event_kernels as kernels
from penstock.streams.encoding import row_kernels
from penstock.streams.encoding.layout import ColumnLayout, Converter, Field, LayoutParts, as_printed, common
from penstock.streams.encoding.view import StreamView
from penstock.values.common_types import CommonType

_FORMS = {
    "int2": row_kernels.RAW,
    "int4": row_kernels.RAW,
    "int8": row_kernels.EXACT,
    "uint8": row_kernels.EXACT,
    "year": row_kernels.RAW,
    "float4": row_kernels.FLOAT,
    "float8": row_kernels.FLOAT,
    "bool": row_kernels.BOOLEAN,
    "json": row_kernels.JSON,
    "jsonb": row_kernels.JSON,
}


def json_text(name: str) -> str:
    return dumps(name, ensure_ascii=False)


class JsonFormat:
    def parts(self, version: TableVersion, view: StreamView) -> LayoutParts:
        masks = dict(view.masks)
        kinds = {
            name: CommonType("") if name in masks else common(version.columns.get(name))
            for name in (*view.columns, *view.key)
        }
        forms = {name: _FORMS.get(kind.name, row_kernels.TEXT) for name, kind in kinds.items()}
        converts = {name: as_printed(kind) for name, kind in kinds.items()}
        return LayoutParts(
            _fields(view),
            [_column(name, forms[name], converts[name]) for name in view.columns],
            [ColumnLayout(forms[name], b",", b",null", b"", b"", converts[name]) for name in view.key],
            [f",{json_text(name)}".encode() for name in view.columns],
            row_braces="{}",
            key_braces="[]",
        )


def _column(name: str, form: int, convert: Converter | None) -> ColumnLayout:
    value = f",{json_text(name)}:".encode()
    return ColumnLayout(form, value, value + b"null", b"", b"", convert)


def _fields(view: StreamView) -> list[Field]:
    table = f'"schema":{json_text(view.stream.namespace)},"table":{json_text(view.stream.name)}'
    return [
        Field(kernels.KIND, lead=b'{"op":"'),
        Field(kernels.BEFORE, lead=b'","before":', absent=b"null"),
        Field(kernels.AFTER, lead=b',"after":', absent=b"null"),
        Field(kernels.MISSING, row_kernels.TEXT, present=b',"unchanged":'),
        Field(kernels.TX, kernels.LSN, lead=f',"source":{{{table},"lsn":"'.encode()),
        Field(kernels.XID, row_kernels.EXACT, lead=b'","txid":'),
        Field(kernels.COMMIT_US, kernels.INSTANT, lead=b',"commit_ts":"'),
        Field(kernels.TX, row_kernels.EXACT, lead=b'","tx":'),
        Field(kernels.OP, row_kernels.EXACT, lead=b',"op_index":'),
        Field(kernels.SNAPSHOT, lead=b',"snapshot":'),
        Field(kernels.NOW_MS, kernels.DECIMAL, lead=b'},"ts_ms":'),
        Field(kernels.NOTHING, lead=b"}"),
    ]
