"""Names of topics: templates with values in braces, and what a name may have.

A topic has letters, digits and `._-` only, which is what Kafka takes; other characters become `_`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

TOPIC_LENGTH_MAX = 249
_ILLEGAL = re.compile(r"[^A-Za-z0-9._-]")
_PLACE = re.compile(r"\{([^{}]*)\}")


def filled(template: str, values: Mapping[str, str]) -> str:
    return _PLACE.sub(lambda place: values[place[1]], template)


def legal_topic(name: str) -> str:
    """The name as a topic may have it."""
    topic = _ILLEGAL.sub("_", name)
    if topic in (".", ".."):
        topic = "_" * len(topic)
    return topic[:TOPIC_LENGTH_MAX]


def rendered(template: str, column: Callable[[str], pa.StringArray], rows: int) -> pa.StringArray:
    """The template for each row, with the row's values; null where one of them is."""
    parts: list[pa.StringArray] = []
    at = 0
    for place in _PLACE.finditer(template):
        parts += [pa.repeat(pa.scalar(template[at : place.start()]), rows), column(place[1])]
        at = place.end()
    parts.append(pa.repeat(pa.scalar(template[at:]), rows))
    return pc.binary_join_element_wise(*parts, "")


def template_columns(template: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_PLACE.findall(template)))
