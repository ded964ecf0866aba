"""The text of a new pipeline file, and how a password is kept out of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from penstock.config import Config
from penstock.config.document import parse_document
from penstock.config.substitution import has_placeholder
from penstock.core.errors import ConfigError

PASSWORD_VARIABLE = "PGPASSWORD"  # noqa: S105 - the variable's name
_PLACEHOLDER = f"${{{PASSWORD_VARIABLE}}}"
_PLAIN = re.compile(r"\A[A-Za-z_][A-Za-z0-9_]*\.[A-Za-z0-9_*]+\Z")
_QUERY_PASSWORD = re.compile(r"(?:\A|(?<=&))(password|sslpassword)=([^&]*)", re.IGNORECASE)
_ALL_PLACEHOLDERS = re.compile(r"\A(\$\{[^{}]*\})+\Z")
_PARAMETER = re.compile(r"\A[a-z_]+\Z")
_MAY_HOLD_AT = ("user", "application_name", "options", "password", "sslpassword")

_TEMPLATE = """\
# A Penstock pipeline. `penstock check` tests it, `penstock sync` runs it once.
# ${{VARIABLE}}, ${{VARIABLE:-default}} and ${{file:/path}} are filled in when the file is read:
# keep passwords out of it.

source:
  type: postgres
  url: {url}
  slot: {slot}  # replication slot, made at the first sync
  publication: {publication}  # likewise; says which tables are sent

destination:
  type: parquet
  path: {path}  # `penstock table path SCHEMA.TABLE` says where a table's files are

state: ./state  # state file, checkpoints, change log: keep it, apart from the tables

streams:  # schema.table, unquoted; * matches in either part
{streams}
  # - {{table: public.events, write: append}}         # every change as a row of its own
  # - {{table: public.countries, mode: full_refresh}}  # read whole at every sync

# exclude: [public.migrations]                        # left out of what * matches
# spark: {{master: "local[*]", conf: {{}}}}
# log: {{retention: 7d}}                                # how long applied changes can be read again
# readers: {{grace: 1h}}                                # how long a replaced version stays for its readers
# load: {{method: ctid, rows_per_chunk: 500000}}
"""


@dataclass(frozen=True, slots=True)
class Answers:
    url: str = "${DATABASE_URL}"
    slot: str = "penstock"
    publication: str = "penstock"
    path: str = "./lake"
    streams: tuple[str, ...] = ("public.*",)


class AnyVariable(Mapping[str, str]):
    """An environment in which every variable is set, to test a file before its variables are."""

    def __getitem__(self, name: str) -> str:
        return "postgresql://localhost/anything"

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def pipeline_file(answers: Answers) -> str:
    return _TEMPLATE.format(
        url=_quoted(answers.url),
        slot=_quoted(answers.slot),
        publication=_quoted(answers.publication),
        path=_quoted(answers.path),
        streams="\n".join(
            f"  - {stream if _PLAIN.match(stream) else _quoted(stream)}" for stream in answers.streams
        ),
    )


def check_text(text: str, path: Path, environment: Mapping[str, str]) -> None:
    """ConfigError if the file would not be understood."""
    Config.from_document(parse_document(path, text), environment)


def without_password(url: str) -> tuple[str, str | None]:
    """The URL with `${PGPASSWORD}` where a password stood, and that variable's name if one did."""
    if has_placeholder(url) and "://" not in url:
        return url, None
    try:
        parts = urlsplit(url)
    except ValueError:  # its message quotes the URL
        parts = None
    if parts is None or _is_ambiguous(parts):
        raise ConfigError(
            "The URL cannot be taken apart with certainty, so a password in it might be written to the file.",
            remedy=f"Write {_PLACEHOLDER} where the password stands, or percent-encode it.",
        )
    user_info, at, host = parts.netloc.rpartition("@")
    user, colon, password = user_info.partition(":")
    hidden = False
    if colon and password and not _ALL_PLACEHOLDERS.match(password):
        user_info, hidden = f"{user}:{_PLACEHOLDER}", True

    def hide(match: re.Match[str]) -> str:
        nonlocal hidden
        if not match[2] or _ALL_PLACEHOLDERS.match(match[2]):
            return match[0]
        hidden = True
        return f"{match[1]}={_PLACEHOLDER}"

    query = _QUERY_PASSWORD.sub(hide, parts.query)
    if not hidden:
        return url, None
    # Not urlunsplit: it drops the // of a URL without a host.
    rest = f"?{query}" if query else ""
    return f"{parts.scheme}://{user_info}{at}{host}{parts.path}{rest}", PASSWORD_VARIABLE


def _is_ambiguous(parts: SplitResult) -> bool:
    """Whether a password with a `/`, `?`, `#` or `@` in it may reach beyond where it should end."""
    parameters = [part.partition("=") for part in parts.query.split("&") if part]
    known = all(_PARAMETER.match(name) and equals for name, equals, _ in parameters)
    stray = any("@" in value and name not in _MAY_HOLD_AT for name, _, value in parameters)
    outside = "@" in parts.path or bool(parts.fragment) or parts.netloc.count("@") > 1
    address = parts.netloc.rpartition("@")[2].rpartition("]")[2]  # beyond an IPv6 address
    port = address.partition(":")[2]
    is_port = not port or port.isdigit() or has_placeholder(port)
    return outside or not known or stray or not is_port


def _quoted(text: str) -> str:
    # A JSON string is a YAML string.
    return json.dumps(text, ensure_ascii=False)
