"""Dead letters of a Parquet table on the screen: the newest, of those with a text in their reason, by pages.

Values are read for who asks for them alone, and of no more letters than are shown; for the list itself their
columns are not touched. So that a text that few letters have does not read them all, `LOOKED_MAX` are looked
at for one page.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.console.shown_values import ShownValues
from penstock.core.stream import StreamId

LETTERS_SHOWN = 100
LOOKED_MAX = 500_000
_LISTED = ["_op", "_tx", "_op_index", "_commit_ts", "_dead_at", "_bad_columns", "_reason"]
_VALUES = ["_key", "_row"]
_BATCH_ROWS = 256


def parquet_letters(
    directory: Path, stream: StreamId, *, values: bool, text: str = "", skip: int = 0
) -> dict[str, Any]:
    """`more`: there are others behind these; `only_newest`: no more than so many were looked at."""
    import pyarrow.parquet as pq

    from penstock.destinations.parquet_layout import TableLayout

    layout = TableLayout(directory, stream)
    record = layout.newest_record()
    names = () if record is None else record.dead_letters.files
    found: list[dict[str, Any]] = []
    looked, more = 0, False
    for name in reversed(names):
        if more or looked >= LOOKED_MAX:
            break
        with pq.ParquetFile(layout.dead_letters / name) as parquet:
            for group in reversed(range(parquet.num_row_groups)):
                if more or looked >= LOOKED_MAX:
                    break
                rows = parquet.read_row_group(group, columns=_LISTED)
                looked += rows.num_rows
                fits = _newest_with(rows, text)
                passed = min(skip, len(fits))
                skip -= passed
                room = LETTERS_SHOWN - len(found)
                more = len(fits) - passed > room
                chosen = fits[passed : passed + room]
                listed = _at(rows, chosen)
                if values and chosen:
                    _add_values(parquet, group, chosen, listed)
                found += listed
    total = 0 if record is None else record.dead_letters.count
    shown = ShownValues()
    return {
        "stream": str(stream),
        "dead_letters": total,
        "shown": [_letter(each, shown if values else None) for each in found],
        "more": more,
        "only_newest": looked if not more and looked < total else None,
    }


def _newest_with(rows: Any, text: str) -> list[int]:
    """Places of the letters with the text in their reason, the newest first."""
    import pyarrow.compute as pc

    if not text:
        return list(range(rows.num_rows - 1, -1, -1))
    reasons = pc.coalesce(rows.column("_reason"), pc.binary_join(rows.column("_bad_columns"), ", "))
    fits = pc.fill_null(pc.match_substring(reasons, text, ignore_case=True), False)
    places: list[int] = pc.indices_nonzero(fits).to_pylist()
    return places[::-1]


def _add_values(parquet: Any, group: int, chosen: list[int], listed: list[dict[str, Any]]) -> None:
    letter_at = dict(zip(chosen, listed, strict=True))
    begins = 0
    for batch in parquet.iter_batches(_BATCH_ROWS, row_groups=[group], columns=_VALUES):
        here = [place for place in range(begins, begins + batch.num_rows) if place in letter_at]
        for place, row in zip(here, _at(batch, [place - begins for place in here]), strict=True):
            letter_at[place] |= row
        begins += batch.num_rows


def _at(rows: Any, places: list[int]) -> list[dict[str, Any]]:
    import pyarrow as pa

    found: list[dict[str, Any]] = rows.take(pa.array(places, pa.int64())).to_pylist()
    return found


def _letter(letter: dict[str, Any], values: ShownValues | None) -> dict[str, Any]:
    fields = {
        "op": letter["_op"],
        "offset": f"{letter['_tx']}_{letter['_op_index']}",
        "committed": letter["_commit_ts"].isoformat() if letter["_commit_ts"] else None,
        "dead since": letter["_dead_at"].isoformat() if letter["_dead_at"] else None,
        "why": letter["_reason"] or ", ".join(letter["_bad_columns"] or ()),
    }
    if values is not None:
        fields["key"] = [values.of(value) for value in letter["_key"] or ()]
        fields["row"] = {entry["column"]: values.of(entry["value"]) for entry in letter["_row"]}
    return fields
