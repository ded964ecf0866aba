"""`set_heap`: what the C library's heap keeps, for processes that its defaults do not suit.

They give each thread a heap of its own, and large blocks back at once. Where batches are made by one thread
and let go by another that keeps a multiple of what is in use, or maps and clears the same megabytes again and
again: which of the two a process minds, it says itself.
"""

from __future__ import annotations

import contextlib
import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h


def set_heap(*, arenas: int, mapped_from: int | None = None, trimmed_from: int | None = None) -> None:
    """At most so many heaps; blocks of `mapped_from` bytes and more are mapped one by one, and the end of a
    heap is given back once `trimmed_from` bytes are free there. Nothing happens without the GNU C library."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_ARENA_MAX, arenas)
        if mapped_from is not None:
            mallopt(_M_MMAP_THRESHOLD, mapped_from)
        if trimmed_from is not None:
            mallopt(_M_TRIM_THRESHOLD, trimmed_from)
