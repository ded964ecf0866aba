"""When a server that says nothing is taken to be gone."""

from __future__ import annotations

import pytest

from penstock.core.errors import SourceError
from penstock.sources.mysql.binlog.stream import Silence


def test_a_server_that_is_listened_to_and_says_nothing_for_a_minute_is_gone() -> None:
    silence = Silence(now=0.0)
    for second in range(1, 61):
        silence.note(0, float(second))
    with pytest.raises(SourceError, match="nothing for 61 s"):
        silence.note(0, 61.0)


def test_anything_it_says_ends_the_silence() -> None:
    silence = Silence(now=0.0)
    for second in range(1, 1000):
        silence.note(1 if second % 60 == 0 else 0, float(second))
    assert silence.length_s == 999 % 60


def test_a_time_in_which_nobody_listened_is_no_silence() -> None:
    silence = Silence(now=0.0)
    silence.note(0, 3600.0)
    silence.note(0, 7200.0)
    assert silence.length_s < 60
    silence.note(1, 7201.0)
    assert silence.length_s == 0
