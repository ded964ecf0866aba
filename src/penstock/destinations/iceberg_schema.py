"""Arrow columns as Iceberg columns: types, and the field ids by which Iceberg knows a column.

A column keeps its id for life: a rename changes its name, a column dropped and added again gets a new id.
Data files carry the ids, so that every file ever written is read right under the schema of any later day.
Ids are given out here and not by Iceberg, because tasks write files before the commit that adds a column.

Iceberg has no 16-bit integer; a reader widens it. A UUID stays text: not every engine reads Iceberg's type.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from penstock.core.errors import DestinationError
from penstock.core.iceberg_names import iceberg_name

FIELD_ID = b"PARQUET:field_id"

#: Between the parts of a path; no name of a column has this character, while it may have a dot.
INSIDE = "\0"
#: By column name; inside a column by path: column and `element` in a list, column and field in a struct.
FieldIds = Mapping[str, int]


def assign_ids(schema: pa.Schema, inherited: FieldIds, last: int) -> dict[str, int]:
    """An id for every column and all inside it: the inherited one, else the next after `last`."""
    ids: dict[str, int] = {}
    for field in schema:
        for name in _id_names(field):
            if name in inherited:
                ids[name] = inherited[name]
            else:
                last += 1
                ids[name] = last
    assert len(set(ids.values())) == len(ids), "two columns under one id would be read as one"
    return ids


def with_field_ids(schema: pa.Schema, ids: FieldIds) -> pa.Schema:
    """The same columns, so that Parquet files written with them carry the ids."""
    return pa.schema([_with_ids(field, ids, field.name) for field in schema])


def schema_json(schema: pa.Schema, ids: FieldIds) -> str:
    """What Iceberg's own parser reads."""
    fields = [_field_json(field, ids, field.name) for field in schema]
    return json.dumps({"type": "struct", "schema-id": 0, "fields": fields})


def ids_of(schema: pa.Schema) -> dict[str, int]:
    """The ids that a schema carries."""
    return {path: number for field in schema for path, number in _ids_in(field, field.name)}


def _ids_in(field: pa.Field, path: str) -> list[tuple[str, int]]:
    own = [(path, int(field.metadata[FIELD_ID]))] if _has_id(field) else []
    return own + [pair for inner, name in _inner(field.type, path) for pair in _ids_in(inner, name)]


def same_columns(schema: pa.Schema, held: pa.Schema) -> dict[str, int]:
    """The ids of those columns of `held` that `schema` has too, by name and type."""
    alike = [
        field for field in schema if field.name in held.names and held.field(field.name).type == field.type
    ]
    names = {field.name for field in alike}
    return {path: number for path, number in ids_of(held).items() if path.partition(INSIDE)[0] in names}


def same_columns_in(schema: pa.Schema, table: str) -> dict[str, int]:
    """The same of a table's schema as Iceberg writes it."""
    held = {field["name"]: field for field in json.loads(table)["fields"]}
    found: dict[str, int] = {}
    for field in schema:
        if field.name in held:
            ids = _ids_in_json(held[field.name], field.name)
            alike = ids.keys() == set(_id_names(field))
            if alike and _type_json(field.type, ids, field.name) == held[field.name]["type"]:
                found |= ids
    return found


def names_by_id(schema: pa.Schema) -> dict[int, str]:
    """The columns of a data file by their field ids."""
    return {int(field.metadata[FIELD_ID]): field.name for field in schema if _has_id(field)}


def _ids_in_json(field: Mapping[str, Any], path: str) -> dict[str, int]:
    ids, kind = {path: int(field["id"])}, field["type"]
    inner = []
    if isinstance(kind, dict) and kind["type"] == "list":
        inner = [{"id": kind["element-id"], "name": "element", "type": kind["element"]}]
    elif isinstance(kind, dict) and kind["type"] == "struct":
        inner = kind["fields"]
    for each in inner:
        ids |= _ids_in_json(each, f"{path}{INSIDE}{each['name']}")
    return ids


def _has_id(field: pa.Field) -> bool:
    return bool(field.metadata and FIELD_ID in field.metadata)


def _id_names(field: pa.Field, path: str = "") -> list[str]:
    path = path or field.name
    return [path, *(name for inner, name in _inner(field.type, path) for name in _id_names(inner, name))]


def _inner(kind: pa.DataType, path: str) -> list[tuple[pa.Field, str]]:
    """The fields inside a type, each with its path."""
    if pa.types.is_list(kind):
        return [(kind.value_field, f"{path}{INSIDE}element")]
    if pa.types.is_struct(kind):
        fields = map(kind.field, range(kind.num_fields))
        return [(field, f"{path}{INSIDE}{field.name}") for field in fields]
    return []


def _with_ids(field: pa.Field, ids: FieldIds, path: str) -> pa.Field:
    inner = [_with_ids(each, ids, name) for each, name in _inner(field.type, path)]
    if pa.types.is_list(field.type):
        field = field.with_type(pa.list_(inner[0]))
    elif pa.types.is_struct(field.type):
        field = field.with_type(pa.struct(inner))
    return field.with_metadata({**(field.metadata or {}), FIELD_ID: str(ids[path]).encode()})


def _type_json(kind: pa.DataType, ids: FieldIds, path: str) -> Any:
    inner = _inner(kind, path)
    if pa.types.is_list(kind):
        [(element, name)] = inner
        return {
            "type": "list",
            "element-id": ids[name],
            "element": _type_json(element.type, ids, name),
            "element-required": False,
        }
    if pa.types.is_struct(kind):
        return {"type": "struct", "fields": [_field_json(each, ids, name) for each, name in inner]}
    return _primitive(kind, path)


def _field_json(field: pa.Field, ids: FieldIds, path: str) -> dict[str, Any]:
    return {"id": ids[path], "name": field.name, "required": False, "type": _type_json(field.type, ids, path)}


def _primitive(kind: pa.DataType, path: str) -> str:
    name = iceberg_name(kind)
    if name is None:
        raise DestinationError(
            f"Iceberg has no type for column {path.replace(INSIDE, '.')} ({kind}).",
            remedy="Please report this: every type that Penstock reads should have one.",
        )
    return name
