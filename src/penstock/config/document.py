"""A YAML file as plain values, with the line of every one of them.

Errors give line and column and never quote the file: the line at fault may hold a password. For the
same reason YAML's own exceptions, which do quote it, are not chained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from penstock.core.errors import ConfigError

#: Where a value stands: keys of mappings and indexes of lists, from the top.
Location = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Document:
    path: Path
    values: dict[str, Any]
    root: yaml.Node

    def line(self, location: Sequence[str | int]) -> int:
        """The line of the value at `location`, or of the nearest thing around it that exists."""
        node = self.root
        mark = node.start_mark
        for part in location:
            child = _child(node, part)
            if child is None:
                break
            node, mark = child
        return int(mark.line) + 1


def read_document(path: Path) -> Document:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"There is no pipeline file at {path}.",
            remedy="Write one with `penstock init`, or name another with `penstock -c FILE`.",
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text in UTF-8.", remedy="Save it as UTF-8.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.", remedy="Check the path.") from error
    return parse_document(path, text)


def parse_document(path: Path, text: str) -> Document:
    try:
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
            values = loader.construct_document(root) if root is not None else None
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise _unreadable(path, error) from None
    if root is None or not isinstance(values, dict):
        raise ConfigError(
            f"{path} does not hold a pipeline: its top level is not a mapping of keys to values.",
            remedy="It needs `source`, `destination`, `state` and `streams`; `penstock init` writes one.",
        )
    return Document(path, values, root)


class _Loader(yaml.SafeLoader):
    """Safe YAML, but a key given twice is an error: YAML would take the last one in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            name = getattr(key, "value", None)
            if isinstance(name, str) and key.tag != "tag:yaml.org,2002:merge":
                if name in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key `{name}` is there twice", key.start_mark
                    )
                seen.add(name)
        return super().construct_mapping(node, deep)


def _unreadable(path: Path, error: yaml.YAMLError) -> ConfigError:
    where, why = "", "it is not YAML"
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        why = error.problem or why
    return ConfigError(
        f"{path} cannot be read as YAML{where}: {why}.",
        remedy="Mend that place. Often it is the indentation, a missing space after `:`, or a value that "
        "needs quotes: one that begins with * & ! % @ ` { or [, contains `: `, or holds ${…} inside { }.",
    )


def _child(node: yaml.Node, part: str | int) -> tuple[yaml.Node, Any] | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        item = node.value[part]
        return item, item.start_mark
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if getattr(key, "value", None) == str(part):
                return value, key.start_mark
    return None
