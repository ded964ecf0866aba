"""From the `source` of a pipeline file to the source that it names: the one place that knows all kinds."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Literal, Protocol

from penstock.core.errors import ConfigError
from penstock.sources.base import Source

_OF_POSTGRES = ("pgoutput", "inbox", "streamed", "copy_binary", "binary_values")
#: Drivers that come with an extra, and the modules that have the code of their sources compiled.
_EXTRAS = {
    "pymysql": "penstock.sources.mysql.binlog.warming",
    "pymongo": "penstock.sources.mongodb.warming",
}


class Secret(Protocol):
    def get_secret_value(self) -> str: ...


class PostgresOptions(Protocol):
    """The keys of the pipeline file's `source`, of `type: postgres`."""

    @property
    def type(self) -> Literal["postgres"]: ...

    @property
    def url(self) -> Secret: ...

    @property
    def replica_url(self) -> Secret | None: ...

    @property
    def slot(self) -> str: ...

    @property
    def publication(self) -> str: ...

    @property
    def publication_mode(self) -> Literal["auto", "manual"]: ...


class MysqlOptions(Protocol):
    """The keys of `type: mysql`."""

    @property
    def type(self) -> Literal["mysql"]: ...

    @property
    def url(self) -> Secret: ...

    @property
    def name(self) -> str: ...

    @property
    def replica_id(self) -> int: ...


class MongoOptions(Protocol):
    """The keys of `type: mongodb`."""

    @property
    def type(self) -> Literal["mongodb"]: ...

    @property
    def url(self) -> Secret: ...

    @property
    def name(self) -> str: ...

    @property
    def database_read(self) -> str: ...

    @property
    def layout(self) -> Literal["document", "fields"]: ...

    @property
    def fields_path(self) -> Path | None: ...


SourceOptions = PostgresOptions | MysqlOptions | MongoOptions


def open_source(options: SourceOptions, application_name: str = "penstock") -> Source:
    """Nothing is asked of the server yet. `application_name`: what its connections are called there."""
    if options.type == "mysql":
        return _mysql(options, application_name)
    if options.type == "mongodb":
        return _mongodb(options, application_name)
    return _postgres(options, application_name)


def compiled_modules() -> list[str]:
    """Modules whose `warm_up` has the code of the sources compiled, of those that are installed."""
    of_postgres = [f"penstock.sources.postgres.{name}" for name in _OF_POSTGRES]
    return of_postgres + [module for driver, module in _EXTRAS.items() if find_spec(driver) is not None]


def _postgres(options: PostgresOptions, application_name: str) -> Source:
    from penstock.sources.postgres.source import PostgresSource

    replica = options.replica_url
    return PostgresSource(
        options.url.get_secret_value(),
        None if replica is None else replica.get_secret_value(),
        options.slot,
        options.publication,
        options.publication_mode,
        application_name,
    )


def _mysql(options: MysqlOptions, application_name: str) -> Source:
    _require_driver("pymysql", "mysql")
    from penstock.sources.mysql.source import MysqlSource

    return MysqlSource(options.url.get_secret_value(), options.name, options.replica_id, application_name)


def _mongodb(options: MongoOptions, application_name: str) -> Source:
    _require_driver("pymongo", "mongodb")
    from penstock.sources.mongodb.remembered import RememberedFields
    from penstock.sources.mongodb.source import MongoSource

    path = options.fields_path
    return MongoSource(
        options.url.get_secret_value(),
        options.name,
        options.database_read,
        options.layout,
        None if path is None else RememberedFields(path),
        application_name,
    )


def _require_driver(driver: str, extra: str) -> None:
    if find_spec(driver) is None:
        raise ConfigError(
            f"What connects to a source of type {extra} is not installed.",
            remedy=f"Run: pip install 'penstock[{extra}]'.",
        )
