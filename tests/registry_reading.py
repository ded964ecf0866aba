"""Records of formats with a registry, read as others read them: by their libraries, from registered text."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import fastavro
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.unknown_fields import UnknownFieldSet

from tests.schema_registry import SchemaRegistry


def avro(registry: SchemaRegistry, record: bytes | None) -> Any:
    if record is None:
        return None
    assert record[0] == 0
    schema = json.loads(registry.schema(int.from_bytes(record[1:5], "big")))
    stream = io.BytesIO(record[5:])
    found = fastavro.schemaless_reader(stream, fastavro.parse_schema(schema), None)
    assert stream.read() == b""
    return found


_MESSAGE = re.compile(r"message (\w+) \{\n(.*?)\}", re.DOTALL)
_FIELD = re.compile(r"(optional |repeated |)(\w+) (\w+) = (\d+);")
_SCALARS = ("double", "float", "int64", "uint64", "int32", "bool", "string", "bytes")


def protobuf_class(schema: str) -> Any:
    """The first message of a schema, made by Google's library from what the text says."""
    syntax, package = re.findall(r'syntax = "(\w+)";\npackage ([\w.]+);', schema)[0]
    file = descriptor_pb2.FileDescriptorProto(name="made.proto", syntax=syntax, package=package)
    for name, body in _MESSAGE.findall(schema):
        message = file.message_type.add(name=name)
        for label, kind, field_name, number in _FIELD.findall(body):
            field = message.field.add(
                name=field_name, number=int(number), label=3 if label == "repeated " else 1
            )
            if kind in _SCALARS:
                field.type = getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{kind.upper()}")
            else:
                field.type, field.type_name = 11, f".{package}.{kind}"
            if label == "optional ":
                field.proto3_optional, field.oneof_index = True, len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field_name}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    first = pool.FindMessageTypeByName(f"{package}.{file.message_type[0].name}")
    return message_factory.GetMessageClass(first)


def protobuf(registry: SchemaRegistry, record: bytes | None) -> Any:
    if record is None:
        return None
    assert (record[0], record[5]) == (0, 0)
    made_class = protobuf_class(registry.schema(int.from_bytes(record[1:5], "big")))
    found = made_class.FromString(record[6:])
    parts = [found, *(value for field, value in found.ListFields() if field.message_type is not None)]
    assert all(len(UnknownFieldSet(part)) == 0 for part in parts)
    return found
