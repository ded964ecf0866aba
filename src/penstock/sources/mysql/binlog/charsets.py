"""Character sets of columns: how bytes of each become UTF-8.

A table map names a column's collation by number; which set that is, the server says once (`read_collations`):
numbers differ between MySQL, MariaDB and their versions. Sets of one byte are a table of 256 code points, the
Unicode ones are computed, both by compiled code. The tables are the servers' own: they are Python's, but for
what these hold to be another character, or none, which they show as a question mark. So are those of the
multi-byte sets of East Asia (`east_asian`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from penstock.core.errors import SourceError
from penstock.sources.mysql.binlog import value_kernels as values
from penstock.sources.mysql.binlog.east_asian import EAST_ASIAN, characters
from penstock.sources.mysql.binlog.packet_kernels import Ints
from penstock.word_kernels import SLACK

BINARY = "binary"
_UNICODE = {
    "utf8mb4": values.UTF8,
    "utf8mb3": values.UTF8,
    "utf8": values.UTF8,
    "ascii": values.UTF8,
    "ucs2": values.UTF16_BIG,
    "utf16": values.UTF16_BIG,
    "utf16le": values.UTF16_LITTLE,
    "utf32": values.UTF32,
}
_SINGLE_BYTE = {
    "latin1": "cp1252", "latin2": "iso8859-2", "latin5": "iso8859-9", "latin7": "iso8859-13",
    "cp1250": "cp1250", "cp1251": "cp1251", "cp1256": "cp1256", "cp1257": "cp1257", "cp850": "cp850",
    "cp852": "cp852", "cp866": "cp866", "koi8r": "koi8-r", "koi8u": "koi8-u", "greek": "iso8859-7",
    "hebrew": "iso8859-8", "tis620": "tis-620", "macroman": "mac-roman", "macce": "mac-latin2",
}  # fmt: skip
_OTHERWISE = {
    "cp866": {0xFC: "ⁿ", 0xFD: "²"},
    "koi8u": {0x95: "•"},
    "greek": {0xA1: "ʽ", 0xA2: "ʼ"},
    "hebrew": {0xAF: "‾"},
}
_UNDEFINED = {
    "cp1250": (0x81, 0x83, 0x88, 0x90, 0x98),
    "cp1251": (0x98,),
    "cp1256": (0x8A, 0x8F, 0x98, 0x9A, 0x9F, 0xAA, 0xC0, 0xFF),
    "cp1257": (0x81, 0x83, 0x88, 0x8A, 0x8C, 0x90, 0x98, 0x9A, 0x9C, 0x9F, 0xA1, 0xA5),
    "greek": (0xA4, 0xA5, 0xAA, 0xAE, 0xD2, 0xFF),
    "hebrew": (0xA1, *range(0xBF, 0xDF), 0xFB, 0xFC, 0xFF),
}
#: Collations of sets that a client may write statements in: numbers that are the same on all servers.
_CLIENTS = {
    "latin1": (5, 8, 15, 31, 47, 48, 49, 94), "latin2": (2, 9, 21, 27, 77), "latin5": (30, 78),
    "latin7": (20, 41, 42, 79), "cp1250": (26, 34, 44, 66, 99), "cp1251": (14, 23, 50, 51, 52),
    "cp1256": (57, 67), "cp1257": (29, 58, 59), "cp850": (4, 80), "cp852": (40, 81), "cp866": (36, 68),
    "koi8r": (7, 74), "koi8u": (22, 75), "greek": (25, 70), "hebrew": (16, 71), "tis620": (18, 89),
    "macroman": (39, 53), "macce": (38, 43), "gbk": (28, 87), "gb2312": (24, 86),
    "gb18030": (248, 249, 250), "big5": (1, 84), "euckr": (19, 85), "sjis": (13, 88), "cp932": (95, 96),
    "ujis": (12, 91), "eucjpms": (97, 98),
}  # fmt: skip
_CLIENT_CHARSETS = {number: charset for charset, numbers in _CLIENTS.items() for number in numbers}
_REPLACEMENT = 0xFFFD
_NO_CODES = np.zeros(0, np.int64)
_NO_BYTES = np.zeros(0, np.uint8)


def read_collations(connection: Any) -> dict[int, str]:
    """The character set of every collation, by the number that table maps use."""
    with connection.cursor() as cursor:
        found: dict[int, str] = {}
        for table in ("COLLATIONS", "COLLATION_CHARACTER_SET_APPLICABILITY"):
            cursor.execute(
                "SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = 'information_schema' "
                "AND table_name = %s AND column_name = 'ID'",
                (table,),
            )
            if cursor.fetchone()[0]:
                cursor.execute(
                    f"SELECT ID, CHARACTER_SET_NAME FROM information_schema.{table} WHERE ID IS NOT NULL "
                    "AND CHARACTER_SET_NAME IS NOT NULL"
                )
                found |= {int(number): str(name) for number, name in cursor.fetchall()}
    return found


def charset_of(collation: int | None, collations: Mapping[int, str], stream: str) -> str:
    name = collations.get(collation) if collation is not None else None
    if name is None:
        raise SourceError(
            "The binary log does not say which character set a column has.",
            stream=stream,
            remedy="Set binlog_row_metadata=MINIMAL or FULL on the server (MySQL 8.0, MariaDB 10.5).",
        )
    return name


def conversion(charset: str, stream: str) -> tuple[int, Ints]:
    """How text of a set is written: kind of value, and the code points that it looks up, if any."""
    found = _conversion(charset)
    if found is None:
        raise SourceError(
            f"A column has the character set {charset}, which Penstock cannot convert.",
            stream=stream,
            remedy="Change the column to utf8mb4, or leave it out of the stream.",
        )
    return found


def _conversion(charset: str) -> tuple[int, Ints] | None:
    if charset in _UNICODE:
        return _UNICODE[charset], _NO_CODES
    if charset in _SINGLE_BYTE:
        return values.SINGLE_BYTE, _code_points(charset)
    return characters(charset) if charset in EAST_ASIAN else None


@lru_cache(64)
def _code_points(charset: str) -> Ints:
    points = np.full(256, _REPLACEMENT, np.int64)
    for byte in range(256):
        text = bytes([byte]).decode(_SINGLE_BYTE[charset], errors="ignore")
        if text:
            points[byte] = ord(text)
        elif charset == "latin1":  # what Windows leaves undefined, MySQL keeps as a control character
            points[byte] = byte
    for byte, text in _OTHERWISE.get(charset, {}).items():
        points[byte] = ord(text)
    points[list(_UNDEFINED.get(charset, ()))] = ord("?")
    return points


def client_charset(collation: int) -> str:
    """In which a statement is written; of those that are not known, as most are."""
    return _CLIENT_CHARSETS.get(collation, "utf8mb4")


def to_utf8(value: bytes, charset: str) -> bytes:
    """A single value, such as a member of an enumeration."""
    kind, codes = _conversion(charset) or (values.UTF8, _NO_CODES)
    if kind == values.UTF8:
        return value.decode(errors="replace").encode()
    text, written = np.array(bytearray(value), np.uint8), np.zeros(3 * len(value) + SLACK, np.uint8)
    end = values.write_value(kind, text, 0, len(value), 0, 0, _NO_BYTES, _NO_CODES, codes, written, 0)
    return written[:end].tobytes()
