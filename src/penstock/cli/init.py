"""`penstock init`: write a commented pipeline file. A password is never written, whoever gives it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from penstock import durable
from penstock.cli.pipeline_file import (
    Answers,
    AnyVariable,
    SourceType,
    check_text,
    pipeline_file,
    usual_streams,
    without_password,
)
from penstock.cli.pipeline_file import source_type as said_by
from penstock.cli.settings import Settings, settings_of
from penstock.core.errors import ConfigError

_DEFAULTS = Answers()


def init(
    context: typer.Context,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="postgresql://user@host:5432/database, mysql://user@host:3306/database or "
            "mongodb://user@host:27017/database; a password in it is not written.",
        ),
    ] = None,
    url_env: Annotated[
        str | None, typer.Option("--url-env", metavar="NAME", help="Take the whole URL from this variable.")
    ] = None,
    source_type: Annotated[
        SourceType | None,
        typer.Option("--type", help="The kind of database, where the URL does not say it; else postgres."),
    ] = None,
    slot: Annotated[str, typer.Option(help="Replication slot, of Postgres.")] = _DEFAULTS.slot,
    publication: Annotated[str, typer.Option(help="Publication, of Postgres.")] = _DEFAULTS.publication,
    path: Annotated[str | None, typer.Option(metavar="DIR", help="Where the tables go.")] = None,
    stream: Annotated[
        list[str] | None, typer.Option(metavar="SCHEMA.TABLE", help="May be given several times; * matches.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", metavar="", help="Replace a file that is there.")] = False,
) -> None:
    """Write penstock.yaml, by asking or from options."""
    settings = settings_of(context)
    target = settings.config_path
    if target.exists() and not force:
        raise ConfigError(
            f"{target} is there already.", remedy="Give --force to replace it, or -c to write another."
        )
    if url and url_env:
        raise ConfigError("Give --url or --url-env, not both.", remedy="Drop one of them.")
    asking = sys.stdin.isatty() and not settings.json
    given_url = _url(url, url_env, asking)
    kind = _kind(given_url, source_type)
    if kind != "postgres" and (slot, publication) != (_DEFAULTS.slot, _DEFAULTS.publication):
        raise ConfigError(
            "Only Postgres has slots and publications.", remedy="Drop --slot and --publication."
        )
    cleaned, variable = without_password(given_url)
    answers = Answers(
        type=kind,
        url=cleaned,
        slot=slot,
        publication=publication,
        path=path or (typer.prompt("Directory for the tables", _DEFAULTS.path) if asking else _DEFAULTS.path),
        streams=tuple(stream or _streams(asking, usual_streams(kind, cleaned))),
    )
    text = pipeline_file(answers)
    try:
        check_text(text, target, AnyVariable(kind))
    except ConfigError as error:
        raise ConfigError(
            "These answers do not make a pipeline file; nothing was written.",
            detail=error.detail,
            remedy="Correct the option or the answer.",
        ) from None
    durable.replace(target, text.encode())
    _tell(settings, answers, variable)


def _url(url: str | None, url_env: str | None, asking: bool) -> str:
    if url:
        return url
    if url_env:
        return f"${{{url_env}}}"
    if asking:
        return str(typer.prompt("URL of the database, or ${VARIABLE} that holds it", _DEFAULTS.url))
    return _DEFAULTS.url


def _kind(url: str, given: SourceType | None) -> SourceType:
    said = said_by(url)
    if given is not None and said not in (None, given):
        raise ConfigError(f"The URL is not for --type {given}.", remedy="Drop --type, or correct the URL.")
    return given or said or "postgres"


def _streams(asking: bool, usual: Sequence[str]) -> Sequence[str]:
    if not asking:
        return usual
    answer: str = typer.prompt("Tables, separated by commas; * matches", ", ".join(usual))
    return [part.strip() for part in answer.split(",") if part.strip()]


def _tell(settings: Settings, answers: Answers, variable: str | None) -> None:
    if settings.json:
        settings.emit_json({"written": str(settings.config_path), "password_variable": variable})
        return
    settings.note(f"Wrote {settings.config_path}.")
    if variable:
        settings.note(f"The password was not written: set {variable} in the environment.")
    settings.note("Next: `penstock check`, then `penstock sync`.")
