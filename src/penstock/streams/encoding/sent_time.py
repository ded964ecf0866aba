"""Events without what depends on when and by which version they were made, so that two makings are equal.

Every format ends an event with the time of its making: text in JSON, six bytes of a varint in Avro (up to the
year 2039) and in Protocol Buffers (up to 2109). Debezium's names the version as well. The rest is a function
of the change and of the lane's settings.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.streams.encoding.encoder import EncodingSettings

_JSON_TIME = r'"ts_ms":\d+\}\z'
_DEBEZIUM_TIMES = r'"ts_ms":\d+,"ts_us":\d+,"ts_ns":\d+(\}+)\z'
_DEBEZIUM_VERSION = r',"source":\{"version":"[^"]*"'
_VARINT_BYTES = 6


def without_time(values: pa.BinaryArray, settings: EncodingSettings) -> pa.BinaryArray:
    """What is to be compared of events; a tombstone is null, and stays so."""
    if settings.format == "json":
        return pc.replace_substring_regex(values, _JSON_TIME, "}")
    if settings.format == "debezium":
        timeless = pc.replace_substring_regex(values, _DEBEZIUM_TIMES, r"\1")
        return pc.replace_substring_regex(timeless, _DEBEZIUM_VERSION, ',"source":{', max_replacements=1)
    return pc.binary_slice(values, 0, -_VARINT_BYTES)
