"""Stream ids: `schema.table`, verbatim and unquoted; the first dot separates.

`public.Weird Name` and `public.a.b` (table `a.b`) are fine. `*` matches in either part of a pattern.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

_SAFE_IN_FILE_NAMES = " +,=@-_"  # and letters, digits; "." is escaped by hand below


@dataclass(frozen=True, order=True, slots=True)
class StreamId:
    namespace: str
    name: str

    @classmethod
    def parse(cls, text: str) -> StreamId:
        namespace, separator, name = text.partition(".")
        if not (namespace and separator and name):
            raise ValueError(f"not a stream id: {text!r} (expected schema.table)")
        return cls(namespace, name)

    def __str__(self) -> str:
        return f"{self.namespace}.{self.name}"

    @property
    def is_pattern(self) -> bool:
        return "*" in self.namespace or "*" in self.name

    def matches(self, other: StreamId) -> bool:
        """Whether this pattern covers `other`."""
        return _matches(self.namespace, other.namespace) and _matches(self.name, other.name)

    @property
    def file_name(self) -> str:
        """One path component that stands for this stream and nothing else on any file system."""
        return f"{escape_file_name(self.namespace)}.{escape_file_name(self.name)}"


#: Under this name the log holds what applications emit by `pg_logical_emit_message`. Nobody can make a schema
#: whose name begins so.
MESSAGES = StreamId("pg_logical", "messages")


def escape_file_name(text: str) -> str:
    """A name as a path component: no separators, no leading dot or underscore, reversible."""
    escaped = quote(text, safe=_SAFE_IN_FILE_NAMES).replace(".", "%2E")
    # Spark and Hive pass over files whose names begin with an underscore.
    return "%5F" + escaped[1:] if escaped.startswith("_") else escaped


def unescape_file_name(text: str) -> str:
    return unquote(text)


def _matches(pattern: str, text: str) -> bool:
    if "*" not in pattern:
        return pattern == text
    regex = ".*".join(re.escape(part) for part in pattern.split("*"))
    return re.fullmatch(regex, text, re.DOTALL) is not None
