"""The round of SipHash, for whoever hashes in compiled code; how words come in and go out is theirs."""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(nogil=True, inline="always")
def _turn(word: np.uint64, bits: int) -> np.uint64:
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))


@numba.njit(nogil=True, inline="always")
def sip_round(
    v0: np.uint64, v1: np.uint64, v2: np.uint64, v3: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    v0 = v0 + v1
    v1 = _turn(v1, 13) ^ v0
    v0 = _turn(v0, 32)
    v2 = v2 + v3
    v3 = _turn(v3, 16) ^ v2
    v0 = v0 + v3
    v3 = _turn(v3, 21) ^ v0
    v2 = v2 + v1
    v1 = _turn(v1, 17) ^ v2
    v2 = _turn(v2, 32)
    return v0, v1, v2, v3
