"""A verification as one HTML page: no script, nothing fetched from elsewhere, light and dark, for 360 px too.

Everything that comes from a table (names, keys, values) is escaped. The page allows no script and no other
source by its own policy, so that a value that looks like one stays text wherever the page is served from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from penstock.cli.tables import count
from penstock.core.verify_report import TABLES, Difference, VerifiedStream, VerifyReport

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --good: #1a7f37; --bad: #c4262e; --quiet: #6b7280; }
@media (prefers-color-scheme: dark) { :root { --good: #4ac26b; --bad: #ff7b72; --quiet: #9ca3af; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .6rem; text-align: left; vertical-align: top; }
th { font-weight: 600; } td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td.value { font-family: ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
.equal { color: var(--good); } .different { color: var(--bad); font-weight: 600; }
.quiet { color: var(--quiet); }
"""
_SHAPES = "shapes"
_BOTH = {TABLES: "Tables and source", _SHAPES: "Shapes and source"}
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_TABLE_COUNTS = {
    "source rows": "source_rows",
    "table rows": "table_rows",
    "missing": "missing",
    "extra": "extra",
    "different": "different",
}
_SHAPE_COUNTS = {
    "shape rows" if name == "table rows" else name: field for name, field in _TABLE_COUNTS.items()
}
_LANE_COUNTS = {
    "changes": "source_rows",
    "records": "table_rows",
    "missing": "missing",
    "doubled": "doubled",
    "out of order": "out_of_order",
    "different": "different",
    "extra": "extra",
}


def counts_of(report: VerifyReport) -> dict[str, str]:
    """The numbers that are told of a stream: what each is called, and the field that has it."""
    return {TABLES: _TABLE_COUNTS, _SHAPES: _SHAPE_COUNTS}.get(report.of, _LANE_COUNTS)


def page(report: VerifyReport) -> str:
    """The whole page, as text."""
    both = _BOTH.get(report.of, f"The lane {report.of} and the change log")
    headline = f"{both} are equal." if report.equal else f"{both} differ."
    if report.equal and not report.complete:
        one = {TABLES: "table", _SHAPES: "shape"}.get(report.of, "stream")
        headline = f"No difference was found, and not every {one} could be compared."
    part = "all keys" if report.sample >= 1 else f"{report.sample:.3g} of the keys"
    body = [
        f'<h1 class="{"equal" if report.equal else "different"}">{escape(headline)}</h1>',
        f'<p class="quiet">Begun {escape(report.began_at)}, {report.seconds:.1f} s; {part} compared.</p>',
        _summary(report.streams, {**counts_of(report), "dead letters": "dead_letters"}),
        *(_stream(each, shown=report.shows_values) for each in report.streams if each.differences),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(headline)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _summary(streams: Sequence[VerifiedStream], shown: Mapping[str, str]) -> str:
    rows = []
    for each in streams:
        numbers = [getattr(each, name) for name in shown.values()]
        compared = each.verdict != "not compared"
        notes = [each.reason] if each.reason else []
        if each.lane and each.compared_from:
            notes.append(f"compared from {each.compared_from}; {count(each.loaded)} loaded rows beside")
        notes += each.notes
        if each.columns_not_compared:
            notes.append(f"columns not compared: {', '.join(each.columns_not_compared)}")
        if each.repaired is not None:
            notes.append(f"{count(each.repaired)} rows repaired")
        rows.append(
            f'<tr><td>{escape(each.stream)}</td><td class="{each.verdict.split()[0]}">{each.verdict}</td>'
            + "".join(f'<td class="number">{count(number) if compared else ""}</td>' for number in numbers)
            + f"<td>{escape(each.position or '')}</td><td>{escape('; '.join(notes))}</td></tr>"
        )
    counted = "".join(f'<th class="number">{name}</th>' for name in shown)
    return _table(f"<th>stream</th><th>verdict</th>{counted}<th>position</th><th></th>", rows)


def _stream(stream: VerifiedStream, *, shown: bool) -> str:
    more = ""
    if stream.left_out:
        more = f'<p class="quiet">{count(stream.left_out)} more rows differ.</p>'
    if stream.buckets_looked_into < stream.buckets_differing:
        more += (
            f'<p class="quiet">Rows differ in {count(stream.buckets_differing)} of {count(stream.buckets)} '
            f"buckets of keys; {count(stream.buckets_looked_into)} of them were looked into.</p>"
        )
    held = "shape" if stream.lane else "table"
    values = f"<th>source</th><th>{held}</th>" if shown else ""
    rows = [line for each in stream.differences for line in _lines(each, shown=shown)]
    head = f"<th>row</th><th>key</th><th>column</th>{values}"
    return f"<h2>{escape(stream.stream)}</h2>\n{_table(head, rows)}\n{more}"


def _lines(difference: Difference, *, shown: bool) -> Iterable[str]:
    key = ", ".join(f"{name}={value}" for name, value in difference.key.items())
    first = f'<td>{difference.kind}</td><td class="value">{escape(key)}</td>'
    if not difference.columns:
        yield f"<tr>{first}<td></td>{'<td></td><td></td>' if shown else ''}</tr>"
    for column in difference.columns:
        values = f"{_value(column.source)}{_value(column.table)}" if shown else ""
        yield f"<tr>{first}<td>{escape(column.name)}</td>{values}</tr>"


def _value(text: str | None) -> str:
    return '<td class="quiet">null</td>' if text is None else f'<td class="value">{escape(text)}</td>'


def _table(head: str, rows: Iterable[str]) -> str:
    body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="scroll"><table>{body}</table></div>'
