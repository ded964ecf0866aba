"""Our records in an Iceberg table's metadata, as text.

A commit's record stands in the summary of its snapshot. What would make every summary long stands in table
properties: the source's schema and the columns under `penstock.schema.<key>`, named by key in the record; the
pending load under `penstock.load`; the latest records by snapshot id under `penstock.commits`, for when
their snapshots have expired; under `penstock.cut_off.<snapshot id>` what a kept snapshot holds whose
ancestors we let expire (`iceberg_expiry`); the newest epoch that wrote anything under `penstock.epoch`; the
leaves of a partitioned source as of the newest commit under `penstock.leaves`. A record names leaves by their
key: one that was made with others than the newest has none any more.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from penstock.core.schema import TableSchema
from penstock.destinations.iceberg_schema import FIELD_ID
from penstock.destinations.records import DeadLetters, PendingLoad, TableRecord

SUMMARY = "penstock"
LOAD = "penstock.load"
COMMITS = "penstock.commits"
CUT_OFF = "penstock.cut_off."
CUT_OFF_TOGETHER = "penstock.cut_off"  # as the first versions wrote them: all in one
EPOCH = "penstock.epoch"
LEAVES = "penstock.leaves"
SCHEMA = "penstock.schema."

COMMITS_MIRRORED = 16
_HOLDS_NONE = "null"

#: The value of a table property, or None.
Properties = Callable[[str], str | None]


def schema_key(schema: TableSchema, columns: pa.Schema) -> str:
    return f"{schema.id}-{hashlib.sha256(_columns_text(columns).encode()).hexdigest()[:8]}"


def schema_text(schema: TableSchema, columns: pa.Schema) -> str:
    return json.dumps({"schema": schema.to_json(), "columns": _columns_text(columns)})


def read_schema(properties: Properties, key: str) -> tuple[TableSchema, pa.Schema]:
    text = properties(SCHEMA + key)
    if text is None:
        raise ValueError(f"the table property {SCHEMA}{key} is missing")
    fields = json.loads(text)
    columns = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(fields["columns"])))
    return TableSchema.from_json(fields["schema"]), columns


def record_text(record: TableRecord) -> str:
    """A record without what stands elsewhere: files in the manifests, schema and load in properties."""
    assert record.columns is not None
    fields = record.to_json()
    del fields["files"], fields["load"]
    fields["schema"] = schema_key(record.schema, record.columns)
    if record.marker is not None and record.marker.leaves is not None:
        fields["marker"]["leaves"] = _leaves_key(leaves_text(record.marker.leaves))
    return json.dumps(fields, separators=(",", ":"))


def leaves_text(leaves: Mapping[str, str]) -> str:
    return json.dumps(leaves, separators=(",", ":"), sort_keys=True)


def read_record(properties: Properties, text: str) -> TableRecord:
    fields = json.loads(text)
    schema, columns = read_schema(properties, fields["schema"])
    if fields["marker"] is not None and "leaves" in fields["marker"]:
        leaves = properties(LEAVES)
        known = leaves is not None and _leaves_key(leaves) == fields["marker"]["leaves"]
        fields["marker"]["leaves"] = json.loads(leaves) if known and leaves is not None else None
    fields |= {"files": [], "load": None, "schema": schema.to_json()}
    return replace(TableRecord.from_json(fields), columns=columns)


def without_marker(properties: Properties, text: str) -> str:
    """The record of a table that holds rows of ours, nobody knows which."""
    return record_text(replace(read_record(properties, text), marker=None))


def load_text(load: PendingLoad) -> str:
    assert load.columns is not None
    fields = {
        "load_id": load.load_id,
        "schema": schema_key(load.schema, load.columns),
        "write": load.write,
        "thread_ids": list(load.thread_ids),
        "dead_letters": load.dead_letters.to_json(),
        "head": load.head,
    }
    return json.dumps(fields, separators=(",", ":"))


def read_load(properties: Properties) -> PendingLoad | None:
    text = properties(LOAD)
    if text is None:
        return None
    fields = json.loads(text)
    schema, columns = read_schema(properties, fields["schema"])
    return PendingLoad(
        load_id=fields["load_id"],
        schema=schema,
        write=fields["write"],
        thread_ids=tuple(fields["thread_ids"]),
        dead_letters=DeadLetters.from_json(fields["dead_letters"]),
        columns=columns,
        head=fields.get("head"),
    )


def read_mirror(properties: Properties) -> dict[int, str]:
    """Our latest commits by snapshot id, the oldest first."""
    return {int(snapshot): text for snapshot, text in json.loads(properties(COMMITS) or "{}").items()}


def letter_names(metadata: Mapping[str, Any]) -> set[str]:
    """The files of dead letters that any commit of ours names which the table may still come to hold, or the
    pending load. `metadata`: as a metadata file has it."""
    properties = metadata.get("properties", {})
    summaries = (each.get("summary", {}).get(SUMMARY) for each in metadata.get("snapshots", ()))
    cut_off = (text for name, text in properties.items() if name.startswith(CUT_OFF))
    together = _cut_off_together(properties.get).values()
    latest = read_mirror(properties.get).values()
    texts = {*summaries, *cut_off, *together, *latest, properties.get(LOAD)} - {None, _HOLDS_NONE}
    letters = (DeadLetters.from_json(json.loads(text)["dead_letters"]) for text in texts)
    return {name for each in letters for name in each.names}


class Known:
    """All that is written down of which snapshot holds which commit of ours; None: it holds none."""

    def __init__(self, properties: Properties) -> None:
        self._property = properties
        self._listed = {**_cut_off_together(properties), **read_mirror(properties)}

    def __contains__(self, snapshot_id: object) -> bool:
        return snapshot_id in self._listed or self._property(f"{CUT_OFF}{snapshot_id}") is not None

    def __getitem__(self, snapshot_id: int) -> str | None:
        if snapshot_id in self._listed:
            return self._listed[snapshot_id]
        text = self._property(f"{CUT_OFF}{snapshot_id}")
        return None if text == _HOLDS_NONE else text


def cut_off_properties(answers: Mapping[int, str | None]) -> dict[str, str]:
    """One for each snapshot that is kept without its ancestors: what is not written down is lost for good."""
    return {
        f"{CUT_OFF}{snapshot}": _HOLDS_NONE if text is None else text for snapshot, text in answers.items()
    }


def outlived(properties: Mapping[str, str], there: Container[int]) -> list[str]:
    """The properties of snapshots that were cut off and are not there any more."""
    together = _cut_off_together(properties.get)
    gone = [CUT_OFF_TOGETHER] if together and not any(each in there for each in together) else []
    names = [name for name in properties if name.startswith(CUT_OFF)]
    return [*gone, *(name for name in names if int(name.removeprefix(CUT_OFF)) not in there)]


def _cut_off_together(properties: Properties) -> dict[int, str | None]:
    return {int(each): text for each, text in json.loads(properties(CUT_OFF_TOGETHER) or "{}").items()}


def mirror_text(mirror: Mapping[int, str], snapshot_id: int, record: str) -> str:
    """The mirror with one more commit, without those that are too old to be asked for."""
    latest = list({**mirror, snapshot_id: record}.items())[-COMMITS_MIRRORED:]
    return json.dumps({str(snapshot): text for snapshot, text in latest}, separators=(",", ":"))


def _leaves_key(leaves: str) -> str:
    return hashlib.sha256(leaves.encode()).hexdigest()[:16]


def _columns_text(columns: pa.Schema) -> str:
    """Names, types and ids; other metadata of the columns stands in the source's schema."""
    return base64.b64encode(pa.schema([_plain(field) for field in columns]).serialize().to_pybytes()).decode()


def _plain(field: pa.Field) -> pa.Field:
    return field.with_metadata({FIELD_ID: field.metadata[FIELD_ID]})
