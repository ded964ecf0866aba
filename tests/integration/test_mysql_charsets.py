"""Texts of each character set are what the servers hold them to be, code by code."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from penstock.sources.mysql.binlog import value_kernels
from penstock.sources.mysql.binlog.charsets import conversion, to_utf8
from penstock.sources.mysql.binlog.columns import Rendering, render
from tests.mysql_server import MysqlServer

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("name", ["mysql", "mariadb"])
def test_every_byte_of_a_set_is_the_character_that_the_server_holds_it_to_be(
    mysql_servers: Callable[[str], MysqlServer], name: str
) -> None:
    server = mysql_servers(name)
    charsets = [
        str(charset)
        for (charset,) in server.rows(
            "SELECT CHARACTER_SET_NAME FROM information_schema.CHARACTER_SETS WHERE MAXLEN = 1"
        )
    ]
    not_converted = {"binary", "dec8", "hp8", "swe7", "armscii8", "keybcs2", "geostd8"}  # refused by name
    compared = 0
    for charset in sorted({*charsets} - not_converted - {"ascii"}):
        kind, points = conversion(charset, "shop.orders")
        assert kind == value_kernels.SINGLE_BYTE
        asked = " UNION ALL ".join(
            f"SELECT {byte}, HEX(CONVERT(CONVERT(UNHEX('{byte:02x}') USING {charset}) USING utf8mb4))"
            for byte in range(256)
        )
        for byte, told in server.rows(asked):
            character = bytes.fromhex(told)
            assert chr(int(points[byte])).encode() == character, f"{charset} {byte:02x}"
            assert to_utf8(bytes([byte]), charset) == character, f"{charset} {byte:02x}"
            compared += 1
    assert compared == 18 * 256


_BYTES = " UNION ALL ".join(f"SELECT UNHEX('{byte:02x}') AS byte" for byte in range(256))


@pytest.mark.parametrize("name", ["mysql", "mariadb"])
def test_every_code_of_a_multi_byte_set_is_the_character_that_the_server_holds_it_to_be(
    mysql_servers: Callable[[str], MysqlServer], name: str
) -> None:
    server = mysql_servers(name)
    charsets = {
        str(charset)
        for (charset,) in server.rows(
            "SELECT CHARACTER_SET_NAME FROM information_schema.CHARACTER_SETS WHERE MAXLEN > 1"
        )
    } - {"utf8mb3", "utf8mb4", "ucs2", "utf16", "utf16le", "utf32"}
    assert len(charsets) == (9 if name == "mysql" else 8)  # MariaDB has no gb18030
    server.execute("CREATE DATABASE codes", f"CREATE TABLE codes.bytes AS {_BYTES}")
    for charset in sorted(charsets):
        told = _codes(server, charset)
        assert len(told) > 8_000
        assert _differences(charset, told) == [], charset
    if (
        name == "mysql"
    ):  # each of its four-byte codes becomes something, so that many can be asked for at once
        for lead in range(0x81, 0xFF):
            codes = b"".join(
                bytes((lead, *others))
                for others in product(range(0x30, 0x3A), range(0x81, 0xFF), range(0x30, 0x3A))
            )
            [(text,)] = server.rows(
                f"SELECT HEX(CONVERT(CONVERT(UNHEX('{codes.hex()}') USING gb18030) USING utf8mb4))"
            )
            assert to_utf8(codes, "gb18030") == bytes.fromhex(text), f"{lead:02x}"


def _codes(server: MysqlServer, charset: str) -> dict[bytes, str]:
    """All that a server stores in a column of a set: two bytes, if not of ASCII, and three behind 8F."""
    found = {}
    for begin in ("''", "x'8f'") if charset in ("ujis", "eucjpms") else ("''",):
        server.execute(
            "DROP TABLE IF EXISTS codes.kept",
            f"CREATE TABLE codes.kept (code VARBINARY(3), text VARCHAR(3) CHARACTER SET {charset})",
            f"INSERT IGNORE INTO codes.kept SELECT CONCAT({begin}, a.byte, b.byte), "
            f"CONCAT({begin}, a.byte, b.byte) FROM codes.bytes a, codes.bytes b WHERE a.byte >= x'80'",
        )
        for code, text in server.rows(
            "SELECT HEX(code), HEX(CONVERT(text USING utf8mb4)) FROM codes.kept "
            "WHERE CAST(text AS BINARY) = code"
        ):
            found[bytes.fromhex(code)] = bytes.fromhex(text).decode()
    return found


def _differences(charset: str, told: dict[bytes, str]) -> list[tuple[str, str, str]]:
    """Codes that the log would show as something else, among values and among members of enumerations."""
    lengths = np.fromiter(map(len, told), np.int32, len(told))
    places = (np.cumsum(lengths) - lengths).astype(np.int32)
    kind, points = conversion(charset, "shop.orders")
    buffer = np.array(bytearray(b"".join(told) + bytes(64)), np.uint8)
    found = render(buffer, places, lengths, Rendering(kind, codes=points), "shop.orders").to_pylist()
    return [
        (code.hex(), text, str(shown))
        for (code, text), shown in zip(told.items(), found, strict=True)
        if shown != text or to_utf8(code, charset).decode() != text
    ]
