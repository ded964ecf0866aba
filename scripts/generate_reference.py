"""Writes docs/reference/ from the code, so that it says what the code does.

    python scripts/generate_reference.py           write the pages
    python scripts/generate_reference.py --check   exit code 1 if a page is not what the code says

Each page has one source: the models of the pipeline file, the commands, the error classes, the table of
types, the lists of failpoints and of metrics. Only the sentences around the tables are written here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin

import typer
from pydantic import BaseModel, ByteSize, SecretStr
from pydantic.fields import FieldInfo

from penstock.cli.failure import exit_codes
from penstock.cli.main import app
from penstock.config import Config
from penstock.config.unavailable import (
    LATER_COMMANDS,
    LATER_DESTINATIONS,
    LATER_LANES,
    LATER_SOURCES,
    LATER_STREAM_KEYS,
)
from penstock.core.errors import PenstockError
from penstock.failpoints import FAILPOINTS
from penstock.metrics import METRICS
from penstock.sources.postgres.type_table import TYPE_TABLE

DIRECTORY = Path(__file__).resolve().parent.parent / "docs" / "reference"
_HEAD = "<!-- Written by scripts/generate_reference.py; change the code, not this page. -->\n\n"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


# The pipeline file


_CONFIGURATION = """
The pipeline file, `penstock.yaml`, is YAML. Relative paths count from its directory. `${VARIABLE}`,
`${VARIABLE:-default}` and `${file:/path}` are filled in after the file is parsed, so no value can change its
structure; in the user, password and parameters of a URL they are percent-encoded. `$${` stands for `${`.
Durations carry a unit (`30s`, `15m`, `12h`, `7d`), sizes may (`64MiB`). An unknown key is an error that names
the nearest known one; a key given twice is an error.
"""


def configuration() -> str:
    sections = ["# The pipeline file", _paragraph(_CONFIGURATION), "## Top level", _fields(Config)]
    for key, field in _keys(Config):
        model = _model_in(field.annotation)
        if isinstance(field.discriminator, str):
            sections += [f"## `{key}`", _paragraph(field.description), *_kinds(field)]
        elif model is not None:
            title = f"## `{key}`" + (": one entry" if get_origin(field.annotation) is list else "")
            sections += [title, _paragraph(model.__doc__), _fields(model), *_inner(model)]
    later = {
        "`source.type`": LATER_SOURCES,
        "`destination.type`": LATER_DESTINATIONS,
    }
    refused = [(where, _codes(what)) for where, what in later.items() if what]
    sections += [
        "## Not there yet",
        "These are refused by name, never ignored; so is a path that is a URL, but for `checkpoint.path`.",
        table(("where", "what"), [*refused, *_later_of_sources()]),
    ]
    return "\n\n".join(sections) + "\n"


def _later_of_sources() -> Iterator[tuple[str, str]]:
    for kind, keys in LATER_STREAM_KEYS.items():
        shown = [key if value is None else f"{key}: {value}" for key, value in keys]
        yield f"`streams`, of a source of type `{kind}`", _codes(shown)
    for kind, lanes in LATER_LANES.items():
        yield f"`lanes`, of a source of type `{kind}`", _codes(lanes)
    for kind, commands in LATER_COMMANDS.items():
        yield f"commands, of a source of type `{kind}`", _codes(commands)


def _kinds(field: FieldInfo) -> list[str]:
    """A section for each kind that a mapping may be of."""
    sections: list[str] = []
    for model in get_args(field.annotation):
        kind = get_args(model.model_fields[field.discriminator].annotation)[0]
        sections += [f"### `{field.discriminator}: {kind}`", _paragraph(model.__doc__), _fields(model)]
    return sections


def _inner(model: type[BaseModel], level: int = 3) -> list[str]:
    """The sections inside a section, and those inside them."""
    sections: list[str] = []
    for key, field in _keys(model):
        inner = _model_in(field.annotation)
        if inner is not None:
            title = f"{'#' * level} `{key}`"
            sections += [title, _paragraph(inner.__doc__), _fields(inner), *_inner(inner, level + 1)]
    return sections


def _fields(model: type[BaseModel]) -> str:
    rows = []
    for key, field in _keys(model):
        inner = _model_in(field.annotation)
        about = field.description or (_paragraph(inner.__doc__) if inner else "")
        if not about:
            raise SystemExit(f"{model.__name__}.{key} has no docstring: say below the field what it means")
        if inner is not None and not isinstance(field.default, list):
            is_one = get_origin(field.annotation) in (None, UnionType)
            about = f"{_paragraph(about)} See [below](#{key})." if is_one else about
        kind = "URL" if key.endswith("url") else _type(field.annotation)
        rows.append((f"`{key}`", kind, _default(field), _paragraph(about)))
    return table(("key", "value", "default", "meaning"), rows)


def _keys(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        yield field.alias or name, field


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _model_in(inner))), None)


_TYPE_NAMES: dict[Any, str] = {
    str: "text",
    bool: "`true` or `false`",
    int: "number",
    float: "number",
    Path: "path",
    timedelta: "duration",
    ByteSize: "size",
    SecretStr: "text",
    Any: "anything",
}


def _type(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{choice}`" for choice in arguments)
    if origin is list:
        return "list"
    if origin is dict or _model_in(annotation):
        return "mapping"
    if annotation in _TYPE_NAMES:
        return _TYPE_NAMES[annotation]
    return _type(next(inner for inner in arguments if inner is not type(None)))


_DURATIONS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1), ("ms", 0.001))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    value = field.default
    if value is None or isinstance(value, BaseModel):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        unit, length = next((each for each in _DURATIONS if seconds >= each[1]), ("s", 1))
        return f"`{seconds / length:g}{unit}`"
    if isinstance(value, ByteSize):
        return f"`{value.human_readable().replace('.0', '')}`"
    if isinstance(value, list | dict):
        return f"`{'{}' if isinstance(value, dict) else '[]'}`"
    return f"`{value}`"


# The commands


def cli() -> str:
    root: Any = typer.main.get_command(app)
    sections = [
        "# Commands",
        "Global options may stand before or after the command. Results go to stdout, progress and notes to "
        "stderr; with `--json`, stdout carries exactly one JSON document, also when the command fails "
        "(`penstock run`: one line for each event).",
        "## Global options",
        _options(root),
    ]
    for path, command in _commands(root, "penstock"):
        summary, _, more = (command.help or "").partition("\n\n")
        sections += [f"## `{path}`", _paragraph(summary)]
        sections += [_paragraph(more)] if more else []
        sections += [_options(command)] if _shown(command) else []
    sections += ["## Exit codes", _exit_codes()]
    return "\n\n".join(sections) + "\n"


def _commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{path} {name}")
        else:
            arguments = " ".join(
                (argument if parameter.required else f"[{argument}]") + ("…" if parameter.nargs == -1 else "")
                for parameter in command.params
                if parameter.param_type_name == "argument"
                for argument in [parameter.metavar or parameter.name.upper()]
            )
            yield f"{path} {name} {arguments}".strip(), command


def _shown(command: Any) -> list[Any]:
    return [each for each in command.params if each.name != "help" and getattr(each, "help", None)]


def _options(command: Any) -> str:
    rows = []
    for each in _shown(command):
        is_argument = each.param_type_name == "argument"
        name = each.metavar or each.name.upper()
        names = f"`{name}`" if is_argument else ", ".join(f"`{option}`" for option in each.opts)
        value = "" if is_argument or getattr(each, "is_flag", False) else f" `{name}`"
        default = "" if each.default in (None, False) or callable(each.default) else f"`{each.default}`"
        about = each.help + (f" Also from `{each.envvar}`." if each.envvar else "")
        rows.append((names + value, default, about))
    return table(("option", "default", "meaning"), rows)


def _exit_codes() -> str:
    return table(("code", "meaning"), [(str(code), meaning) for code, meaning in exit_codes().items()])


# Errors, types, failpoints, metrics


_ERRORS = """
Every error has a code, a sentence that says what happened, the stream it concerns (if one) and what to do.
With `--json` it is `{"error": {"code", "message", "stream", "detail", "remedy"}}`, fields that are empty left
out. In Python it is an exception of `penstock.core.errors` with the same attributes. No message holds a
password or a value of a row.
"""
_ERRORS_BESIDE = """
Beside these: `interrupted` (exit code 130) when the command was stopped by Ctrl-C or SIGTERM. An error that
Penstock does not know is shown by its kind alone, with code `penstock` and exit code 1; `--verbose` adds the
place in the code. All exit codes are listed with the [commands](cli.md#exit-codes).
"""


def errors() -> str:
    rows = [(f"`{kind.code}`", str(kind.exit_code), _meaning(kind)) for kind in _error_classes()]
    return _page("# Errors", _ERRORS, table(("code", "exit code", "meaning"), rows), _ERRORS_BESIDE)


def _error_classes() -> list[type[PenstockError]]:
    found: list[type[PenstockError]] = []
    pending = [PenstockError]
    while pending:
        kind = pending.pop(0)
        found.append(kind)
        pending += kind.__subclasses__()
    return sorted(found, key=lambda kind: (kind.exit_code, kind.code))


def _meaning(kind: type[PenstockError]) -> str:
    return "Any other error." if kind is PenstockError else _paragraph(kind.__doc__)


_TYPES = """
What a column of Postgres becomes in the table. A value is the same, bit by bit, whether it came with the
load or through the log. A value is never rounded and never becomes null in silence: what a column cannot hold
makes the row a [dead letter](../guarantees.md#values), and everything else goes on. Where no type of the lake
holds every value of a type of Postgres, the column is text: what Postgres' own output function prints, under
settings that every connection fixes (ISO dates, ISO 8601 intervals, hex `bytea`, UTC, shortest exact floats,
`lc_monetary = C`). That is exact always, and can be parsed by whoever reads it.
"""
_TYPES_CHOICE = """
*by choice*: what [`types`](configuration.md#streams-one-entry) of a stream may say for such a column. `text`
is possible for every column and holds every value. `list` is for arrays of one dimension, of elements that
are held as the table says for their type. Another choice for a table that is there means that it is loaded
again. A choice that a column cannot have is refused by `penstock check` and before a sync begins, with what
is possible; so is one for a column that is not there, unless a pattern brought the table in.
"""
_TYPES_TIME = """
`time` is text unless chosen otherwise, because `24:00:00` is a value of Postgres and of no type of the lake,
and because Spark cannot open Parquet files with a column of times as Arrow writes them (DuckDB, pandas and
pyarrow can). `json` and `jsonb` are text: VARIANT exists in Iceberg from format version 3 on and in few
readers, it holds no number of more than 38 digits (`jsonb` does), and the Arrow libraries that write our
files cannot write it.
"""
_TYPES_LOADED = """
*loaded as binary*: carried in binary during a load. *text*: printed by the source also then.
"""
_TYPES_BAD = """
BC dates and years after 9999 are held exactly, though some readers cannot show them (Python's `datetime` ends
at 9999). A domain is the type below it, with the domain's precision. A type that somebody made is text, also
if it is called like a built-in one. Stored generated columns are columns like
others from Postgres 18 on; virtual ones, and before that stored ones too, are not in the log, so they are in
no table ([more](../guides/schema.md#generated-columns)).
"""


def types() -> str:
    header = ("Postgres", "Parquet", "Iceberg", "extremes", "by choice", "loaded as")
    rows = [
        (each.label, f"`{each.parquet}`", f"`{each.iceberg}`", each.extremes, each.choices, each.loaded_as)
        for each in TYPE_TABLE
    ]
    return _page(
        "# Types", _TYPES, table(header, rows), _TYPES_CHOICE, _TYPES_TIME, _TYPES_LOADED, _TYPES_BAD
    )


_FAILPOINTS = """
Named places at which a test ends the process, fills the disk, raises an error or makes it wait, for whoever
wants to see what a crash does.
"""
_FAILPOINTS_EXAMPLE = "```console\n$ PENSTOCK_FAILPOINT=cdc.committed=kill penstock sync\n```"
_FAILPOINTS_USE = """
`=kill` ends the process with signal 9 the first time the place is reached, `=kill@3` the third time;
`=enospc` raises "no space left on device", `=fail` an error that nobody expects; `=pause` waits until the
file named by `PENSTOCK_FAILPOINT_GATE` exists. Several are separated by commas. What struck is appended to
the file named by `PENSTOCK_FAILPOINT_REPORT`.
"""


def failpoints() -> str:
    rows = [(f"`{name}`", text) for name, text in FAILPOINTS.items()]
    listed = table(("name", "what has just happened"), rows)
    return _page("# Failpoints", _FAILPOINTS, _FAILPOINTS_EXAMPLE, _FAILPOINTS_USE, listed)


_METRICS = """
What `penstock run` serves under `/metrics` ([how to watch it](../guides/operate.md)). A counter begins anew
with its process, as Prometheus expects it. Metrics of capture and of lanes are there on the instance that
leads.
"""


def metrics() -> str:
    rows = [(f"`{each.name}`", each.kind, _codes(each.labels), each.help) for each in METRICS]
    return _page("# Metrics", _METRICS, table(("name", "kind", "labels", "meaning"), rows))


def _page(*parts: str) -> str:
    """Prose is put on one line; tables and code stay as they are."""
    return "\n\n".join(part if part[0] in "#|`" else _paragraph(part) for part in parts) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "configuration.md": configuration,
    "cli.md": cli,
    "errors.md": errors,
    "types.md": types,
    "failpoints.md": failpoints,
    "metrics.md": metrics,
}


def _paragraph(text: str | None) -> str:
    return " ".join((text or "").split())


def _codes(words: Sequence[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def stale_pages() -> list[Path]:
    """Pages that are missing or not what the code says."""
    pages = {DIRECTORY / name: _HEAD + make() for name, make in PAGES.items()}
    return [path for path, text in pages.items() if not path.exists() or path.read_text() != text]


def main(arguments: Sequence[str]) -> int:
    if "--check" in arguments:
        stale = stale_pages()
        for path in stale:
            print(f"{path} is stale: run python scripts/generate_reference.py")
        return 1 if stale else 0
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for name, make in PAGES.items():
        (DIRECTORY / name).write_text(_HEAD + make())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
