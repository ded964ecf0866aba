"""The block `source` of Debezium's envelope, as the connector for each kind of source has it.

All begin with version, connector, name, ts_ms, snapshot, db, sequence, ts_us and ts_ns. Then come, of

    Postgres    schema, table, txId, lsn, xmin
    MySQL       table, server_id, gtid, file, pos, row, thread, query
    MongoDB     collection, ord, lsid, txnNumber, wallTime

Where we say something else than the connectors do, because we know more or less:

    lsn, pos           the position of the transaction, for all its changes
    row, ord           the number of the change in its transaction, each change having two
    sequence           both, so it orders all events
    snapshot           "true" for loaded rows, else "false"; never "last"
    server_id, file    0, and empty; gtid, thread, query, lsid, wallTime and xmin are null
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock import __version__
from penstock.streams.encoding import event_kernels as kernels
from penstock.streams.encoding.json_format import json_text
from penstock.streams.encoding.layout import Field
from penstock.streams.encoding.view import StreamView

_SNAPSHOTS = "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"


def plain(literal: str, name: str, *, optional: bool = False) -> dict[str, Any]:
    """A field of a schema."""
    return {"type": literal, "optional": optional, "field": name}


@dataclass(frozen=True, slots=True)
class SourceBlock:
    """`own`: the schemas of the fields that only this connector has."""

    connector: str
    own: tuple[dict[str, Any], ...]

    def fields(self, view: StreamView) -> list[Field]:
        """From `source` to the beginning of what comes behind it."""
        common = (
            f'"version":{json_text(__version__)},"connector":"{self.connector}",'
            f'"name":{json_text(view.prefix)}'
        )
        database = view.database if self.connector == "postgresql" else view.stream.namespace
        return [
            Field(kernels.COMMIT_MS, kernels.DECIMAL, lead=f',"source":{{{common},"ts_ms":'.encode()),
            Field(kernels.SNAPSHOT, lead=b',"snapshot":"'),
            Field(kernels.TX, kernels.DECIMAL, f'","db":{json_text(database)},"sequence":"[\\"'.encode()),
            Field(kernels.OP, kernels.DECIMAL, lead=b'\\",\\"'),
            Field(kernels.COMMIT_US, kernels.DECIMAL, lead=b'\\"]","ts_us":'),
            Field(kernels.COMMIT_NS, kernels.DECIMAL, lead=b',"ts_ns":'),
            *self._own_fields(view),
        ]

    def _own_fields(self, view: StreamView) -> list[Field]:
        name = json_text(view.stream.name)
        if self.connector == "mysql":
            head = f',"table":{name},"server_id":0,"gtid":null,"file":"","pos":'
            return [
                Field(kernels.TX, kernels.DECIMAL, lead=head.encode()),
                Field(kernels.OP, kernels.DECIMAL, lead=b',"row":'),
                Field(kernels.NOTHING, lead=b',"thread":null,"query":null}'),
            ]
        if self.connector == "mongodb":
            return [
                Field(kernels.OP, kernels.DECIMAL, lead=f',"collection":{name},"ord":'.encode()),
                Field(kernels.XID, kernels.DECIMAL, lead=b',"lsid":null,"txnNumber":'),
                Field(kernels.NOTHING, lead=b',"wallTime":null}'),
            ]
        table = f'"schema":{json_text(view.stream.namespace)},"table":{name}'
        return [
            Field(kernels.XID_SHORT, kernels.DECIMAL, lead=f',{table},"txId":'.encode()),
            Field(kernels.TX, kernels.DECIMAL, lead=b',"lsn":'),
            Field(kernels.NOTHING, lead=b',"xmin":null}'),
        ]

    @property
    def schema(self) -> dict[str, Any]:
        snapshot = plain("string", "snapshot", optional=True) | {
            "name": "io.debezium.data.Enum",
            "version": 1,
            "parameters": {"allowed": _SNAPSHOTS},
            "default": "false",
        }
        return {
            "type": "struct",
            "fields": [
                *(plain("string", name) for name in ("version", "connector", "name")),
                plain("int64", "ts_ms"),
                snapshot,
                plain("string", "db"),
                plain("string", "sequence", optional=True),
                *(plain("int64", name, optional=True) for name in ("ts_us", "ts_ns")),
                *self.own,
            ],
            "optional": False,
            "name": f"io.debezium.connector.{_PACKAGES.get(self.connector, self.connector)}.Source",
            "version": 1,
            "field": "source",
        }


_PACKAGES = {"mongodb": "mongo"}
#: By `SourceColumn.family`.
SOURCE_BLOCKS = {
    "": SourceBlock(
        "postgresql",
        (
            *(plain("string", name) for name in ("schema", "table")),
            *(plain("int64", name, optional=True) for name in ("txId", "lsn", "xmin")),
        ),
    ),
    "mysql": SourceBlock(
        "mysql",
        (
            plain("string", "table", optional=True),
            plain("int64", "server_id"),
            plain("string", "gtid", optional=True),
            plain("string", "file"),
            *(plain("int64", name) for name in ("pos", "row")),
            plain("int64", "thread", optional=True),
            plain("string", "query", optional=True),
        ),
    ),
    "mongodb": SourceBlock(
        "mongodb",
        (
            plain("string", "collection"),
            plain("int64", "ord"),
            plain("string", "lsid", optional=True),
            *(plain("int64", name, optional=True) for name in ("txnNumber", "wallTime")),
        ),
    ),
}
