"""The libpq that psycopg has loaded, with functions that compiled code calls by name.

Calling libpq from compiled code saves a Python call and a bytes object per message. It needs the very
library that made the connection: `is_usable` says whether a connection belongs to it. Where there is none
(psycopg without its binary wheel, another operating system), callers go through psycopg instead.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import psycopg
from llvmlite import binding
from numba.core import types

_FUNCTIONS = ("PQgetCopyData", "PQgetlineAsync", "PQconsumeInput", "PQfreemem")


def address_of(pgconn: psycopg.pq.abc.PGconn) -> int:
    """Where libpq keeps the connection; 0 if psycopg does not say."""
    return int(getattr(pgconn, "pgconn_ptr", None) or 0)


def is_usable(pgconn: psycopg.pq.abc.PGconn) -> bool:
    """Whether the libpq whose functions we call is the one this connection belongs to."""
    if LIBRARY is None or not address_of(pgconn):
        return False
    LIBRARY.PQsocket.argtypes, LIBRARY.PQsocket.restype = [ctypes.c_void_p], ctypes.c_int
    return bool(LIBRARY.PQsocket(address_of(pgconn)) == pgconn.socket)


def external(name: str, result: Any, *arguments: Any) -> Any:
    """A C function of this process, as compiled code calls it."""
    return types.ExternalFunction(name, result(*arguments))


def _find_library() -> ctypes.CDLL | None:
    """The one libpq that is loaded into this process."""
    try:
        mapped = Path("/proc/self/maps").read_text()
    except OSError:
        return None
    found = sorted(set(re.findall(r"(/\S*/libpq[-.]\S*)", mapped)))
    if psycopg.pq.__impl__ not in ("binary", "c") or len(found) != 1:
        return None
    try:
        library = ctypes.CDLL(found[0])
        _bind(library)
    except (OSError, AttributeError):
        return None
    return library


def _bind(library: ctypes.CDLL) -> None:
    """Make libpq's functions known by name to compiled code, which can then be cached on disk."""
    for name in _FUNCTIONS:
        address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        assert address is not None
        binding.add_symbol(name, address)


#: None: compiled code cannot reach libpq here.
LIBRARY = _find_library()
