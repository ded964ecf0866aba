"""Character sets of East Asia: which character each code of theirs is.

MySQL and MariaDB agree on all of them: a code is the character that Python's codec holds it to be, but for
those in `_OTHERWISE`; one that is no character is a question mark. A test asks them for every code.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import product

import numpy as np

from penstock.sources.mysql.binlog import value_kernels as values
from penstock.sources.mysql.binlog.character_kernels import NO_CODE
from penstock.sources.mysql.binlog.packet_kernels import Ints

_CODECS = {
    "gbk": "gbk", "gb2312": "gb2312", "gb18030": "gb18030", "big5": "big5", "euckr": "cp949",
    "sjis": "shift_jis", "cp932": "cp932", "ujis": "euc_jp", "eucjpms": "euc_jp",
}  # fmt: skip
EAST_ASIAN = frozenset(_CODECS)
#: What a server takes for a code, be it a character or not, beside ASCII.
_CODES = {
    "gbk": rb"[\x81-\xfe][\x40-\x7e\x80-\xfe]",
    "gb2312": rb"[\xa1-\xf7][\xa1-\xfe]",
    "gb18030": rb"[\x81-\xfe][\x40-\x7e\x80-\xfe]|[\x81-\xfe][0-9][\x81-\xfe][0-9]",
    "big5": rb"[\xa1-\xf9][\x40-\x7e\xa1-\xfe]",
    "euckr": rb"[\x81-\xfe][A-Za-z\x81-\xfe]",
    "sjis": rb"[\xa1-\xdf]|[\x81-\x9f\xe0-\xfc][\x40-\x7e\x80-\xfc]",
    "cp932": rb"[\xa1-\xdf]|[\x81-\x9f\xe0-\xfc][\x40-\x7e\x80-\xfc]",
    "ujis": rb"\x8e[\xa1-\xdf]|\x8f?[\xa1-\xfe][\xa1-\xfe]",
    "eucjpms": rb"\x8e[\xa1-\xdf]|\x8f?[\xa1-\xfe][\xa1-\xfe]",
}
_KINDS = {"ujis": values.EUC_JP, "eucjpms": values.EUC_JP, "gb18030": values.GB18030}

#: Rows for characters of one's own, which Python's codec does not have: ten of two bytes, ten of three.
_PRIVATE = {
    first | (0xF5 + row) << 8 | 0xA1: "".join(map(chr, range(begin + 94 * row, begin + 94 * (row + 1))))
    for first, begin in ((0, 0xE000), (0x8F0000, 0xE3AC))
    for row in range(10)
}
#: By set: a code, and what it and those that follow it are.
_OTHERWISE = {
    "big5": {
        0xA15A: "\ufffd", 0xA1C3: "\ufffd", 0xA1C5: "\ufffd", 0xA1FE: "\ufffd", 0xA240: "\ufffd",
        0xA2CC: "\ufffd", 0xA2CE: "\ufffd", 0xF9D6: "碁銹裏墻恒粧嫺",
    },
    "gb18030": {0xA8BC: "\u1e3f", 0x8135F437: "\ue7c7"},
    "sjis": {0x815F: "\\"},
    "ujis": {0xA1C0: "\\"} | _PRIVATE,
    "eucjpms": {
        0xA1C1: "\uff5e\u2225", 0xA1DD: "\uff0d", 0xA1F1: "\uffe0\uffe1", 0xA2CC: "\uffe2",
        0xADA1: "①②③④⑤⑥⑦⑧⑨⑩⑪⑫⑬⑭⑮⑯⑰⑱⑲⑳ⅠⅡⅢⅣⅤⅥⅦⅧⅨⅩ",
        0xADC0: "㍉㌔㌢㍍㌘㌧㌃㌶㍑㍗㌍㌦㌣㌫㍊㌻㎜㎝㎞㎎㎏㏄㎡",
        0xADDF: "㍻〝〟№㏍℡㊤㊥㊦㊧㊨㈱㈲㈹㍾㍽㍼≒≡∫∮∑√⊥∠∟⊿∵∩∪",
        0x8FA2B7: "\uff5e", 0x8FA2C3: "\uffe4",
        0x8FF3F3: "ⅰⅱⅲⅳⅴⅵⅶⅷⅸⅹⅠⅡ",
        0x8FF4A1: "ⅢⅣⅤⅥⅦⅧⅨⅩ\uff07\uff02㈱№℡炻仼僴凬匇匤\ufa0e咊坙\ufa0f\ufa10增寬峵嵓\ufa11德悅愠敎昻晥"
        "\ufa12\uf929栁\ufa13\ufa14橫櫢淸淲瀨\ufa15\ufa16甁皂皞\ufa17礰\ufa18\ufa19\ufa1a\ufa1b竧\ufa1c\ufa1d綠"
        "緖\ufa1e荢\ufa1f薰\ufa20\ufa21蠇\ufa22譿賴赶\ufa23\ufa24\ufa25郞\ufa26鄕\ufa27\ufa28閒\uf9dc\ufa29"
        "霻靍靑\ufa2a\ufa2b\ufa2c馞髙魲\ufa2d黑",
    } | _PRIVATE,
}  # fmt: skip


@lru_cache(len(_CODECS))
def characters(charset: str) -> tuple[int, Ints]:
    """Which kind of value a text is, and the code points that `write_multi_byte` looks up.

    Takes a tenth of a second, once for each set.
    """
    kind = _KINDS.get(charset, values.MULTI_BYTE)
    is_code = re.compile(_CODES[charset], re.DOTALL).fullmatch
    otherwise = {
        code + more: character
        for code, text in _OTHERWISE.get(charset, {}).items()
        for more, character in enumerate(text)
    }
    sequences = _sequences(kind)
    points = np.full(len(sequences), NO_CODE, np.int64)
    points[:0x80] = range(0x80)
    for place, sequence in enumerate(sequences):
        if is_code(sequence):
            character = otherwise.get(int.from_bytes(sequence, "big")) or _decoded(sequence, charset)
            points[place] = ord(character)
    return kind, points


def _sequences(kind: int) -> list[bytes]:
    """Bytes that may be a code, each at the place where its code point is looked up.

    Of the four bytes of GB 18030, those behind are no characters, or are computed.
    """
    found = [bytes([byte]) for byte in range(1 << 8)]
    found += (pair.to_bytes(2, "big") for pair in range(1 << 16))
    if kind == values.EUC_JP:
        found += (b"\x8f" + pair.to_bytes(2, "big") for pair in range(1 << 16))
    if kind == values.GB18030:
        found += (
            bytes((0x81 + first, 0x30 + second, 0x81 + third, 0x30 + fourth))
            for first, second, third, fourth in product(range(4), range(10), range(126), range(10))
        )
    return found


def _decoded(sequence: bytes, charset: str) -> str:
    try:
        return sequence.decode(_CODECS[charset])
    except UnicodeDecodeError:
        return "?"
