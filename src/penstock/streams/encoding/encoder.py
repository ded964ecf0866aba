"""What a format is to the lane, and which there are."""

from __future__ import annotations

from typing import Protocol

from penstock.capture.transactions import ChangeRows
from penstock.core.errors import ConfigError
from penstock.streams.encoding.column_encoder import ColumnEncoder
from penstock.streams.encoding.json_format import JsonFormat
from penstock.streams.encoding.settings import EncodingSettings, RegistrySettings
from penstock.streams.encoding.view import StreamView
from penstock.streams.events import Bytes, Events

__all__ = ["Encoder", "EncodingSettings", "RegistrySettings", "encoder"]


class Encoder(Protocol):
    """Not for several threads at once: make one for each."""

    def encode(
        self, changes: ChangeRows, view: StreamView, actions: Bytes | None = None, *, chunk: str = ""
    ) -> Events:
        """The events of these changes, in their order; see `plan` for what each change gives.

        `actions` is what the stream's selection says of each row (`plan.SKIP`, ...); without, by its op.
        `chunk` names the chunk that loaded rows (op `r`) are of. Errors: `TargetError`, the
        schema registry cannot be asked now; `SchemaRefusedError`, it refuses a new version.
        """


def encoder(settings: EncodingSettings) -> Encoder:
    """The encoder of a format; one per thread."""
    salt = settings.mask_salt.encode()
    own = ColumnEncoder(JsonFormat(), salt)
    if settings.format == "json":
        return own
    if settings.format == "debezium":
        from penstock.streams.encoding.debezium import DebeziumFormat

        return ColumnEncoder(DebeziumFormat(settings.modes, settings.schemas), salt, own)
    from penstock.streams.encoding.registry import Registry

    if settings.registry is None:
        raise ConfigError(f"`format: {settings.format}` needs `schema_registry`.")
    registry = Registry(settings.registry)
    if settings.format == "avro":
        from penstock.streams.encoding.avro import AvroFormat

        return ColumnEncoder(AvroFormat(registry, settings.decimals), salt, own)
    from penstock.streams.encoding.protobuf import ProtobufFormat

    return ColumnEncoder(ProtobufFormat(registry), salt, own)
