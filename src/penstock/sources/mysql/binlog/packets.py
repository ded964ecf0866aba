"""Packets of a replication connection: batches of events, commands, and what error packets mean.

An `EventBatch` is bytes and where events are in them; checksums have been verified and are not part of it.
The server's own words are never passed on: they may quote what somebody wrote.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.core.errors import PenstockError, PositionGoneError, SourceBusyError, SourceError
from penstock.recycled_memory import RecycledMemory
from penstock.sources.mysql.binlog import packet_kernels as kernels
from penstock.sources.mysql.binlog.packet_kernels import Bytes, Ints

#: For batches and what is made of them: where rows and values are, texts. Three or four batches' worth.
MEMORY: Final = RecycledMemory(96 << 20)
_COM_REGISTER, _COM_DUMP, _COM_DUMP_GTID = b"\x15", b"\x12", b"\x1e"
_THROUGH_GTID = 4  # a flag of COM_BINLOG_DUMP_GTID: the set counts, not file and offset
#: Servers take a replica's host of 60 characters at most.
_NAME_CHARACTERS_MAX, _DIGEST_CHARACTERS = 60 - len("penstock/"), 12
_ERROR = 0xFF
_POSITION_GONE = (
    b"purged", b"first log file", b"impossible position", b"> file size", b"gtid state", b"not in the master",
    b"gtid_state", b"not in the binlog", b"could not find",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events of one replication connection, in order: bytes, and where each event starts and ends."""

    buffer: Bytes
    starts: Ints
    ends: Ints

    def __len__(self) -> int:
        return len(self.ends)

    def event(self, number: int) -> bytes:
        return self.buffer[int(self.starts[number]) : int(self.ends[number])].tobytes()

    @classmethod
    def join(cls, events: list[bytes]) -> EventBatch:
        """Events that are known one by one: fixtures, tests."""
        ends = np.cumsum(np.fromiter(map(len, events), np.int64, len(events)))
        starts = np.concatenate([np.zeros(1, np.int64), ends])[:-1]
        return cls(np.array(bytearray(b"".join(events)), np.uint8), starts, ends)


def command(payload: bytes) -> bytes:
    """A command as a packet: it begins a conversation, so its sequence is 0."""
    return len(payload).to_bytes(3, "little") + b"\0" + payload


def report_host(pipeline: str) -> str:
    """What servers show of a pipeline among their replicas, so that it is told from other pipelines."""
    if len(pipeline) <= _NAME_CHARACTERS_MAX:
        return f"penstock/{pipeline}"
    digest = hashlib.sha256(pipeline.encode()).hexdigest()[:_DIGEST_CHARACTERS]
    return f"penstock/{pipeline[: _NAME_CHARACTERS_MAX - _DIGEST_CHARACTERS - 1]}~{digest}"


def register(server_id: int, host: str) -> bytes:
    name = host.encode()
    return _COM_REGISTER + struct.pack(f"<IB{len(name)}sBBHII", server_id, len(name), name, 0, 0, 0, 0, 0)


def dump(server_id: int, file: str, offset: int) -> bytes:
    return _COM_DUMP + struct.pack("<IHI", offset, 0, server_id) + file.encode()


def dump_gtid(server_id: int, gtid_set: bytes) -> bytes:
    header = struct.pack("<HIIQI", _THROUGH_GTID, server_id, 0, 4, len(gtid_set))
    return _COM_DUMP_GTID + header + gtid_set


def raise_for(packet: bytes) -> None:
    """What an answer that is no event means: an error, or that the server ended the stream."""
    if not packet or packet[0] != _ERROR:
        raise SourceError(
            "The server ended the stream of its binary log.",
            remedy="Run the same command again, `penstock run` does it by itself; if it goes on, look into "
            "the server's error log.",
        )
    raise error_of(int.from_bytes(packet[1:3], "little"), packet[3:])


def error_of(code: int, message: bytes) -> PenstockError:
    text = message.lower()
    detail = f"The server's error code is {code}."
    if b"same server_uuid/server_id" in text or b"same server_id" in text:
        return SourceBusyError(
            "Another replica with the same server id reads the binary log.",
            detail=detail,
            remedy="Give each pipeline and replica of this server an id of its own (source.server_id).",
        )
    if code == 1789 or (code == 1236 and any(words in text for words in _POSITION_GONE)):
        return PositionGoneError(
            "The server's binary log no longer has the position to go on from.",
            detail=detail,
            remedy="Changes in between are lost to the log: run `penstock resync`, and keep binary logs "
            "longer (binlog_expire_logs_seconds, or the managed service's retention).",
        )
    return SourceError(
        "The server refuses to send its binary log.",
        detail=detail,
        remedy="Run `penstock check`: it needs REPLICATION SLAVE and REPLICATION CLIENT, and log_bin on.",
    )


class Framing:
    """Finds events in the bytes of one connection; knows which checksum they have."""

    def __init__(self, checksum: int, count_max: int) -> None:
        self._checksum = checksum
        self._count_max = count_max

    def frame(self, buffer: Bytes, used: int) -> tuple[EventBatch, int, bool]:
        """Whole events in the first `used` bytes, up to where they are, and whether there may be more."""
        starts, ends = (np.empty(self._count_max, np.int64) for _ in range(2))
        count, done, reason, self._checksum = kernels.frame_events(buffer, used, self._checksum, starts, ends)
        if not count:
            _raise_reason(reason, buffer, done)
        # What is wrong behind whole events is found again by the next call, when these have been handed out.
        return EventBatch(buffer, starts[:count], ends[:count]), int(done), reason != kernels.MORE


def _raise_reason(reason: int, buffer: Bytes, at: int) -> None:
    if reason == kernels.STATUS:
        length = int.from_bytes(buffer[at : at + 3].tobytes(), "little")
        raise_for(buffer[at + 4 : at + 4 + length].tobytes())
    if reason == kernels.BAD_CHECKSUM:
        raise SourceError(
            "An event of the binary log does not match its checksum.",
            remedy="Run the same command again; if it stays, the server's binary log is damaged on its disk.",
        )
    if reason == kernels.BAD_EVENT:
        raise SourceError(
            "The server sent something that is no event of a binary log.",
            remedy="Penstock reads MySQL from 5.7 and MariaDB from 10.4 on; report it for such a server.",
        )
