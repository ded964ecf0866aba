"""Framing: whatever way bytes arrive, the same events come out, and nothing damaged does."""

from __future__ import annotations

import itertools
import struct
import uuid
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.checksum_kernels import crc32, crc32_by_tables
from penstock.core.errors import PositionGoneError, SourceBusyError, SourceError
from penstock.core.gtid import GtidSet
from penstock.sources.mysql.binlog import packet_kernels as kernels
from penstock.sources.mysql.binlog.gtid_set import to_wire
from penstock.sources.mysql.binlog.packets import EventBatch, Framing, error_of

pytestmark = pytest.mark.unit
UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def event(kind: int, body: bytes, checksum: bool = True, flags: int = 0) -> bytes:
    size = kernels.HEADER + len(body) + (4 if checksum else 0)
    data = struct.pack("<IBIIIH", 1, kind, 7, size, 0, flags) + body
    return data + zlib.crc32(data).to_bytes(4, "little") if checksum else data


def packet(content: bytes, status: bytes = b"\0") -> bytes:
    payload = status + content
    parts = []
    while True:
        part, payload = payload[:0xFFFFFF], payload[0xFFFFFF:]
        parts.append(len(part).to_bytes(3, "little") + b"\0" + part)
        if len(part) < 0xFFFFFF:
            return b"".join(parts)


def framed(framing: Framing, data: bytes) -> tuple[EventBatch, int]:
    buffer = np.array(bytearray(data), np.uint8)
    batch, done, _ = framing.frame(buffer, len(buffer))
    return batch, done


@given(st.binary(max_size=1_000), st.integers(0, 200))
def test_checksums_are_those_of_zlib(data: bytes, start: int) -> None:
    start = min(start, len(data))
    buffer = np.array(bytearray(data), np.uint8)
    expected = zlib.crc32(data[start:])
    assert crc32(buffer, start, len(data)) == expected
    assert crc32_by_tables(buffer, start, len(data)) == expected  # where the processor cannot multiply so


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=20), st.lists(st.integers(0, 2000), max_size=10))
def test_events_are_the_same_wherever_the_bytes_are_cut(bodies: list[bytes], cuts: list[int]) -> None:
    events = [event(16, body) for body in bodies]
    data = b"".join(map(packet, events))
    framing = Framing(kernels.CHECKSUM_CRC32, 7)
    found: list[bytes] = []
    rest = b""
    places = sorted({0, *(min(cut, len(data)) for cut in cuts), len(data)})
    for first, last in itertools.pairwise(places):
        rest += data[first:last]
        while True:
            batch, done = framed(framing, rest)
            if not done:
                break
            found += [batch.event(number) for number in range(len(batch))]
            rest = rest[done:]
    assert found == [whole[:-4] for whole in events]
    assert rest == b""


def test_an_event_of_several_packets_is_put_together() -> None:
    bodies = [b"a", bytes(range(256)) * 140_000, b"b"]
    events = [event(30, body, checksum=False) for body in bodies]
    batch, _ = framed(Framing(kernels.CHECKSUM_NONE, 100), b"".join(map(packet, events)))
    assert [batch.event(number) for number in range(3)] == events


def test_a_changed_byte_is_noticed_after_all_before_it_was_handed_out() -> None:
    good, bad = packet(event(16, b"12345678")), bytearray(packet(event(16, b"12345678")))
    bad[-6] ^= 1
    framing = Framing(kernels.CHECKSUM_CRC32, 100)
    batch, done = framed(framing, good + bytes(bad))
    assert len(batch) == 1
    with pytest.raises(SourceError, match="checksum"):
        framed(framing, (good + bytes(bad))[done:])


def test_a_format_description_says_how_events_after_it_are_checked() -> None:
    described = event(15, b"\4\0" + bytes(90) + bytes([kernels.CHECKSUM_NONE]))
    plain = event(16, b"12345678", checksum=False)
    batch, _ = framed(Framing(kernels.CHECKSUM_CRC32, 100), packet(described) + packet(plain))
    assert batch.event(1) == plain
    # A file that is being written has a flag that its checksum does not know of.
    in_use = bytearray(event(15, b"\4\0" + bytes(90) + bytes([kernels.CHECKSUM_CRC32])))
    in_use[kernels.FLAGS_AT] |= 1
    batch, _ = framed(Framing(kernels.CHECKSUM_NONE, 100), packet(bytes(in_use)) + packet(event(16, b"")))
    assert len(batch) == 2


def test_what_an_error_packet_means() -> None:
    framing = Framing(kernels.CHECKSUM_CRC32, 100)
    message = b"#HY000Could not find first log file name in binary log index file"
    with pytest.raises(PositionGoneError, match="no longer has"):
        framed(framing, packet(struct.pack("<H", 1236) + message, b"\xff"))
    with pytest.raises(SourceError, match="ended the stream"):
        framed(framing, packet(b"\0\0\2\0", b"\xfe"))
    assert isinstance(
        error_of(1236, b"A replica with the same server_uuid/server_id as this"), SourceBusyError
    )
    refused = error_of(1045, b"Access denied for user 'secret'")
    assert "secret" not in str(refused)
    assert "1045" in str(refused)


def test_what_is_no_event_is_refused() -> None:
    with pytest.raises(SourceError, match="no event"):
        framed(Framing(kernels.CHECKSUM_NONE, 100), packet(b"too short"))


def test_gtid_sets_are_sent_as_the_protocol_has_them() -> None:
    name = uuid.UUID(UUID).bytes
    plain = GtidSet.parse(f"{UUID}:1-5:7")
    assert to_wire(plain) == struct.pack("<Q16sQQQQQ", 1, name, 2, 1, 6, 7, 8)
    assert to_wire(GtidSet()) == bytes(8)
    tagged = to_wire(plain | GtidSet.parse(f"{UUID}:tag:3"))
    first = name + b"\0" + struct.pack("<QQQQQ", 2, 1, 6, 7, 8)
    second = name + b"\6tag" + struct.pack("<QQQ", 1, 3, 4)
    assert tagged == bytes([1, 2, 0, 0, 0, 0, 0, 1]) + first + second
