"""The text of a new pipeline file, and how a password is kept out of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, urlsplit

from penstock.config import Config
from penstock.config.document import parse_document
from penstock.config.substitution import has_placeholder
from penstock.core.errors import ConfigError

SourceType = Literal["postgres", "mysql", "mongodb"]
#: The variables that the databases' own tools know; MongoDB's know none.
_PASSWORD_VARIABLES: dict[SourceType, str] = {
    "postgres": "PGPASSWORD",
    "mysql": "MYSQL_PWD",
    "mongodb": "MONGODB_PASSWORD",
}
_ANY_URL: dict[SourceType, str] = {
    "postgres": "postgresql://localhost/anything",
    "mysql": "mysql://localhost/anything",
    "mongodb": "mongodb://localhost/anything",
}
_PLAIN = re.compile(r"\A[A-Za-z_][A-Za-z0-9_]*\.[A-Za-z0-9_*]+\Z")
_QUERY_PASSWORD = re.compile(
    r"(?:\A|(?<=&))(password|sslpassword|tlscertificatekeyfilepassword)=([^&]*)", re.IGNORECASE
)
_ALL_PLACEHOLDERS = re.compile(r"\A(\$\{[^{}]*\})+\Z")
_DATABASE = re.compile(r"\A[A-Za-z0-9_]+\Z")
_PARAMETER = re.compile(r"\A[a-z_]+\Z")
_MONGO_PARAMETER = re.compile(r"\A[a-zA-Z]+\Z")
_MECHANISM_PROPERTIES = "authMechanismProperties"
_MAY_HOLD_AT = ("user", "application_name", "options", "password", "sslpassword")

_TEMPLATE = """\
# A Penstock pipeline. `penstock check` tests it, `penstock sync` runs it once.
# ${{VARIABLE}}, ${{VARIABLE:-default}} and ${{file:/path}} are filled in when the file is read:
# keep passwords out of it.

source:
  type: {type}
  url: {url}
{source}
destination:
  type: parquet
  path: {path}  # `penstock table path SCHEMA.TABLE` says where a table's files are

state: ./state  # state file, checkpoints, change log: keep it, apart from the tables

streams:  # {parts}, unquoted; * matches in either part
{streams}
  # - {{table: {schema}.events, write: append}}         # every change as a row of its own
  # - {{table: {schema}.countries, mode: full_refresh}}  # read whole at every sync

# exclude: [{schema}.migrations]                        # left out of what * matches
# spark: {{master: "local[*]", conf: {{}}}}
# log: {{retention: 7d}}                                # how long applied changes can be read again
# readers: {{grace: 1h}}                                # how long a replaced version stays for its readers
# load: {{rows_per_chunk: 500000}}
"""
_POSTGRES = """\
  slot: {slot}  # replication slot, made at the first sync
  publication: {publication}  # likewise; says which tables are sent
"""
_MYSQL = """\
  # server_id: 4711  # as which replica the binary log is read; by default a number of its own
"""
_MONGODB = """\
  # name: penstock     # tells this pipeline from others of the same cluster
  # layout: fields     # a column for each field, instead of whole documents as JSON
"""
_SOURCES: dict[SourceType, str] = {"postgres": _POSTGRES, "mysql": _MYSQL, "mongodb": _MONGODB}


@dataclass(frozen=True, slots=True)
class Answers:
    url: str = "${DATABASE_URL}"
    slot: str = "penstock"
    publication: str = "penstock"
    path: str = "./lake"
    streams: tuple[str, ...] = ("public.*",)
    type: SourceType = "postgres"


class AnyVariable(Mapping[str, str]):
    """An environment in which every variable is set, to test a file before its variables are."""

    def __init__(self, source: SourceType = "postgres") -> None:
        self._value = _ANY_URL[source]

    def __getitem__(self, name: str) -> str:
        return self._value

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def source_type(url: str) -> SourceType | None:
    """Which kind of database a URL is for; None if it does not say."""
    scheme, separator, _ = url.partition("://")
    kinds: dict[str, SourceType] = {
        "postgresql": "postgres",
        "postgres": "postgres",
        "mysql": "mysql",
        "mariadb": "mysql",
        "mongodb": "mongodb",
        "mongodb+srv": "mongodb",
    }
    return kinds.get(scheme.lower()) if separator else None


def usual_streams(source: SourceType, url: str) -> tuple[str, ...]:
    """All tables of the usual schema: at MySQL and MongoDB, of the URL's database."""
    if source == "postgres":
        return Answers().streams
    path = url.partition("://")[2].partition("?")[0].partition("/")[2]
    return (f"{path}.*" if _DATABASE.match(path) else "*.*",)


def pipeline_file(answers: Answers) -> str:
    source = _SOURCES[answers.type]
    return _TEMPLATE.format(
        type=answers.type,
        url=_quoted(answers.url),
        source=source.format(slot=_quoted(answers.slot), publication=_quoted(answers.publication)),
        parts="database.collection" if answers.type == "mongodb" else "schema.table",
        schema="public" if answers.type == "postgres" else "shop",
        path=_quoted(answers.path),
        streams="\n".join(
            f"  - {stream if _PLAIN.match(stream) else _quoted(stream)}" for stream in answers.streams
        ),
    )


def check_text(text: str, path: Path, environment: Mapping[str, str]) -> None:
    """ConfigError if the file would not be understood."""
    Config.from_document(parse_document(path, text), environment)


def without_password(url: str) -> tuple[str, str | None]:
    """The URL with `${PGPASSWORD}`, or another database's variable, where a password stood, and the
    variable's name if one did."""
    variable = _PASSWORD_VARIABLES[source_type(url) or "postgres"]
    placeholder = f"${{{variable}}}"
    if has_placeholder(url) and "://" not in url:
        return url, None
    try:
        parts = urlsplit(url)
    except ValueError:  # its message quotes the URL
        parts = None
    if parts is None or _is_ambiguous(parts):
        raise ConfigError(
            "The URL cannot be taken apart with certainty, so a password in it might be written to the file.",
            remedy=f"Write {placeholder} where the password stands, or percent-encode it.",
        )
    user_info, at, host = parts.netloc.rpartition("@")
    user, colon, password = user_info.partition(":")
    hidden = False
    if colon and password and not _ALL_PLACEHOLDERS.match(password):
        user_info, hidden = f"{user}:{placeholder}", True

    def hide(match: re.Match[str]) -> str:
        nonlocal hidden
        if not match[2] or _ALL_PLACEHOLDERS.match(match[2]):
            return match[0]
        hidden = True
        return f"{match[1]}={placeholder}"

    query = _QUERY_PASSWORD.sub(hide, parts.query)
    if not hidden:
        return url, None
    # Not urlunsplit: it drops the // of a URL without a host.
    rest = f"?{query}" if query else ""
    return f"{parts.scheme}://{user_info}{at}{host}{parts.path}{rest}", variable


def _is_ambiguous(parts: SplitResult) -> bool:
    """Whether a password with a `/`, `?`, `#` or `@` in it may reach beyond where it should end."""
    parameters = [part.partition("=") for part in parts.query.split("&") if part]
    is_mongodb = source_type(f"{parts.scheme}://") == "mongodb"
    names = _MONGO_PARAMETER if is_mongodb else _PARAMETER
    known = all(names.match(name) and equals for name, equals, _ in parameters)
    stray = any("@" in value and name not in _MAY_HOLD_AT for name, _, value in parameters)
    outside = "@" in parts.path or bool(parts.fragment) or parts.netloc.count("@") > 1
    address = parts.netloc.rpartition("@")[2].rpartition("]")[2]  # beyond an IPv6 address
    ports = [each.partition(":")[2] for each in (address.split(",") if is_mongodb else [address])]
    are_ports = all(not port or port.isdigit() or has_placeholder(port) for port in ports)
    properties = [value.lower() for name, _, value in parameters if name == _MECHANISM_PROPERTIES]
    has_token = any("token" in value for value in properties)
    return outside or not known or stray or not are_ports or has_token


def _quoted(text: str) -> str:
    # A JSON string is a YAML string.
    return json.dumps(text, ensure_ascii=False)
