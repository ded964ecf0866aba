"""Types in common words: what a column is to whoever writes its values down for others.

The words are those of Postgres, the first source there was: a type's own name and modifier, and texts as it
prints them. What it does not have gets names of its own: `uint8` (0 to 2^64 - 1), `year`, `duration` (a time
that may be negative or of many hours, `-838:59:59`), `enum`, `set`, `geometry` (`SRID=4326;` and WKB in
hexadecimal digits).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa


class CommonTexts(NamedTuple):
    """`bad` marks what is no value of the common type, such as a day 0: it stands as the source has it.

    None: all of them are.
    """

    values: pa.StringArray
    bad: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True)
class CommonType:
    """`name` is empty for a type that only its source knows: its values are text.

    `text` makes common texts of the source's; None: they are the same. `is_rest`: the column holds whatever
    did not fit into the others.
    """

    name: str
    modifier: int = -1
    text: Callable[[pa.StringArray], CommonTexts] | None = None
    is_rest: bool = False
