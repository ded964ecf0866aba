"""Texts of sets of one byte are what the servers hold them to be, byte by byte."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.sources.mysql.binlog import value_kernels
from penstock.sources.mysql.binlog.charsets import conversion, to_utf8
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
        kind, points, codec = conversion(charset, "shop.orders")
        assert (kind, codec) == (value_kernels.SINGLE_BYTE, None)
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
