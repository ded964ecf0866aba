"""Content encodings: which one a client takes, and bodies in it.

Small bodies go as they are: the header alone would cost more than it saves. A body that many clients wait for
is compressed once (`Body`), a long one piece by piece (`Compressor`).
"""

from __future__ import annotations

import gzip
import zlib
from functools import lru_cache
from typing import Literal

import brotli

Encoding = Literal["br", "gzip"]

SMALL_BYTES = 1024
_GZIP_LEVEL = 4
_BROTLI_QUALITY = 4
#: A client that stalls in a body compressed piece by piece keeps the compressor: 1.3 MiB with quality 4
#: and a window of 256 KiB, 0.4 MiB so, for an eighth more bytes and in two thirds of the time.
_STREAM_QUALITY, _STREAM_WINDOW = 3, 16
_ACCEPTED_BYTES_MAX = 1024


def accepted(header: bytes) -> Encoding | None:
    """The best of what an `accept-encoding` header takes; None: none of ours."""
    return _accepted(header) if len(header) <= _ACCEPTED_BYTES_MAX else None


@lru_cache(maxsize=256)
def _accepted(header: bytes) -> Encoding | None:
    weights: dict[str, float] = {}
    for part in header.decode("latin-1").lower().split(","):
        name, _, parameters = part.partition(";")
        weight = 1.0
        for parameter in parameters.split(";"):
            key, _, value = parameter.partition("=")
            if key.strip() == "q":
                try:
                    weight = float(value)
                except ValueError:
                    weight = 0.0
        weights[name.strip()] = weight
    rest = weights.get("*", 0.0)
    brotli_weight, gzip_weight = weights.get("br", rest), weights.get("gzip", rest)
    if max(brotli_weight, gzip_weight) <= 0:
        return None
    return "br" if brotli_weight >= gzip_weight else "gzip"


class Body:
    """A whole body that may be sent to many clients; each encoding is made once."""

    __slots__ = ("_encoded", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self._encoded: dict[Encoding, bytes] = {}

    def has(self, encoding: Encoding | None) -> bool:
        """Whether `encoded` is free."""
        return encoding is None or encoding in self._encoded

    def encoded(self, encoding: Encoding | None) -> bytes:
        if encoding is None:
            return self.raw
        found = self._encoded.get(encoding)
        if found is None:
            found = _compress(self.raw, encoding)
            self._encoded[encoding] = found
        return found

    def __len__(self) -> int:
        return len(self.raw) + sum(map(len, self._encoded.values()))


def _compress(content: bytes, encoding: Encoding) -> bytes:
    if encoding == "br":
        return bytes(brotli.compress(content, quality=_BROTLI_QUALITY))
    return gzip.compress(content, _GZIP_LEVEL, mtime=0)


class Compressor:
    """One body, piece by piece. What goes in comes out with the same call, up to a few KB: brotli by itself
    would hold megabytes back, and nobody would notice that the client does not read."""

    def __init__(self, encoding: Encoding) -> None:
        is_brotli = encoding == "br"
        self._brotli = brotli.Compressor(quality=_STREAM_QUALITY, lgwin=_STREAM_WINDOW) if is_brotli else None
        self._gzip = None if is_brotli else zlib.compressobj(_GZIP_LEVEL, wbits=31)

    def add(self, piece: bytes) -> bytes:
        if self._gzip is not None:
            return self._gzip.compress(piece)
        assert self._brotli is not None
        return bytes(self._brotli.process(piece) + self._brotli.flush())

    def finish(self) -> bytes:
        if self._gzip is not None:
            return self._gzip.flush()
        assert self._brotli is not None
        return bytes(self._brotli.finish())
