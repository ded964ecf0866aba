"""What has been written keeps little memory beside its own."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.text_kernels import trimmed


@pytest.mark.parametrize(
    ("used", "is_copied"), [(0, True), (10, True), (75, True), (76, False), (100, False)]
)
def test_what_was_written_keeps_less_than_a_third_more_than_its_own_memory(
    used: int, is_copied: bool
) -> None:
    buffer = np.arange(100, dtype=np.uint8)
    written = trimmed(buffer, used)
    assert written.tolist() == list(range(used))
    assert np.shares_memory(written, buffer) != is_copied
