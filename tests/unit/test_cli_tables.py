"""Tables for people: what the source calls its tables and says of errors is shown, and does nothing."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from penstock.cli.tables import printable, table

pytestmark = pytest.mark.unit


def test_no_cell_gives_orders_to_a_terminal() -> None:
    screen = io.StringIO()
    names = ["a\x1b]0;owned\x07b", "\x9b2J", "abc\u202edef", "[red]markup[/red]", "naïve – 表 🚰"]
    Console(file=screen, width=80, force_terminal=True, color_system=None).print(
        table(["stream"], [[name] for name in names])
    )
    shown = screen.getvalue()
    for text in (r"a\x1b]0;owned\x07b", r"\x9b2J", r"abc\u202edef", "[red]markup[/red]", "naïve – 表 🚰"):
        assert text in shown
    assert not {"\x07", "\x9b", "\u202e"} & set(shown)
    assert "\x1b]" not in shown


def test_lines_stay_lines_and_halves_of_characters_are_written_out() -> None:
    assert printable("one\ntwo\r\tthree\ud800") == "one\ntwo\\r\\tthree\\ud800"
