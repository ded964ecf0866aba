"""The console's page: readable in light and dark, with nothing in it that its policy would forbid."""

from __future__ import annotations

import re

import pytest

from penstock.console.assets import PAGE, read_assets

ASSETS = {name: asset.content.decode() for name, asset in read_assets().items()}
_CONTRAST_MIN = 4.5
_PAIRS = [
    *[("ink", on) for on in ("ground", "surface", "raised", "busy-soft", "accent-soft")],
    *[("muted", on) for on in ("ground", "surface", "raised", "bad-soft")],
    *[("accent", on) for on in ("ground", "surface", "accent-soft")],
    *[(name, on) for name in ("good", "busy", "held", "bad", "idle") for on in ("surface", f"{name}-soft")],
    ("surface", "accent"),
    ("surface", "bad"),
]


def test_all_that_the_page_names_is_in_the_package() -> None:
    named = set(re.findall(r'"/assets/([^"]+)"', ASSETS[PAGE]))
    for name, text in ASSETS.items():
        if name.endswith(".js"):
            named |= set(re.findall(r"from '\./([^']+)'", text))
    assert {"app.js", "console.css", "icon.svg"} <= named
    assert named <= ASSETS.keys()
    assert ASSETS.keys() - named == {PAGE}, "what nobody names is not shipped"


@pytest.mark.parametrize("name", sorted(ASSETS))
def test_no_text_becomes_markup_or_code_and_nothing_comes_from_elsewhere(name: str) -> None:
    text = ASSETS[name].replace("http://www.w3.org/2000/svg", "")
    words = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function")
    assert not [word for word in (*words, "import(") if word in text]
    assert not re.search(r"https?://", text)
    assert not re.search(r"\sstyle=|@import|url\(", text)


def test_a_page_that_nobody_sees_keeps_no_connection() -> None:
    """A browser has six for all pages of a host: a seventh page would wait for ever."""
    app = ASSETS["app.js"]
    listening = app[app.index("function listen()") :]
    assert listening.index("if (document.hidden) return") < listening.index("new EventSource")
    seen = app[app.index("addEventListener('visibilitychange'") :]
    assert re.match(r"[^)]*\) => \{\s+if \(document\.hidden\) rest\(\)\s+else if [^{]+\{ listen\(\)", seen)


def test_what_a_lane_writes_has_one_word_on_every_screen() -> None:
    """Changes of the shapes lane were rows on one screen and changes on another."""
    assert [name for name, text in sorted(ASSETS.items()) if "rate(lane.rate" in text] == ["format.js"]
    for screen in ("flow.js", "lanes.js"):
        assert "laneRate(lane)" in ASSETS[screen]


@pytest.mark.parametrize("theme", ["light", "dark", "dark by the system"])
def test_every_text_can_be_read_on_what_it_stands(theme: str) -> None:
    sheet = ASSETS["console.css"]
    begins = {"light": ":root {", "dark": ":root[data-theme='dark']"}.get(theme, "@media (prefers-color")
    block = sheet[sheet.index(begins) :]
    colours = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", block[: block.index("--shadow")]))
    ratios = {(name, on): _ratio(colours[name], colours[on]) for name, on in _PAIRS}
    assert not {pair: ratio for pair, ratio in ratios.items() if ratio < _CONTRAST_MIN}


def _ratio(one: str, other: str) -> float:
    """As WCAG has it."""
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
