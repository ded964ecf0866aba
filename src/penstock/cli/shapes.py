"""`penstock shapes`: serve shapes without a pipeline file; look at those of a running instance, drop some."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.settings import Settings, settings_of
from penstock.cli.supervising import Instance, supervise
from penstock.cli.tables import age, count, size, table
from penstock.core.errors import ConfigError, StorageError

_HELP = "Serve shapes over HTTP: filtered copies of tables, kept in sync; look at them, drop some."
_COLUMNS = ("handle", "table", "where", "offset", "waiting", "on disk", "read")
_WHERE_SHOWN = 60
_Directory = Annotated[
    Path | None,
    typer.Option(
        "--storage-dir",
        metavar="DIRECTORY",
        help="Where `penstock shapes serve` keeps its state.  [env var: ELECTRIC_STORAGE_DIR]",
    ),
]

app = typer.Typer(no_args_is_help=True, help=_HELP)


@app.callback()
def _group() -> None:
    """Serve shapes over HTTP: filtered copies of tables, kept in sync; look at them, drop some."""


@app.command()
def serve(
    context: typer.Context,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="3000 by default.  [env var: ELECTRIC_PORT]")
    ] = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on; all by default.")] = None,
    storage_dir: _Directory = None,
    max_disk_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="When shapes take more, those go that were not read for longest; 64GiB."
        ),
    ] = None,
    expire_after: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="A shape that nobody has read for so long goes, or `never`; 14d."),
    ] = None,
) -> None:
    """Serve shapes of the database at DATABASE_URL until stopped. Needs no pipeline file.

    Needs ELECTRIC_SECRET, or ELECTRIC_INSECURE=true; further settings by Electric's names, see
    docs/guides/shapes.md. Several instances with one ELECTRIC_REPLICATION_STREAM_ID: one leads, the others
    serve what they have and take over.
    """
    given = {
        "port": port,
        "host": host,
        "storage_dir": storage_dir,
        "max_disk_bytes": max_disk_bytes,
        "expire_after": expire_after,
    }
    options = {name: value for name, value in given.items() if value is not None}
    supervise(context, lambda settings, directory: _instance(settings, directory, options))


@app.command("list")
def list_shapes(context: typer.Context, storage_dir: _Directory = None) -> None:
    """Show the shapes of the running instance."""
    from penstock.operations.shapes import shapes as found_in

    settings = settings_of(context)
    shapes = found_in(_state(settings, storage_dir))
    if settings.json:
        settings.emit_json({"shapes": shapes})
        return
    rows = [_row(shape) for shape in shapes]
    settings.out.print(table(_COLUMNS, rows, right=("waiting", "on disk", "read")))


@app.command()
def drop(
    context: typer.Context,
    handle: Annotated[str | None, typer.Argument(metavar="HANDLE", help="The shape.")] = None,
    of_table: Annotated[
        str | None, typer.Option("--table", metavar="TABLE", help="All shapes of a table, schema.table.")
    ] = None,
    storage_dir: _Directory = None,
) -> None:
    """Drop shapes of the running instance; their clients fetch anew."""
    if (handle is None) == (of_table is None):
        raise ConfigError(
            "Which shapes are to be dropped?", remedy="Give a handle, or --table and a table; not both."
        )
    from penstock.operations import shapes

    settings = settings_of(context)
    dropped = shapes.drop(_state(settings, storage_dir), handle=handle, table=of_table)
    if settings.json:
        settings.emit_json({"dropped": dropped})
    else:
        settings.out.print(f"Dropped: {', '.join(dropped)}.", markup=False, highlight=False)


def _instance(settings: Settings, directory: Path, options: dict[str, Any]) -> Instance:
    from penstock.capture.spec import ServiceSpec
    from penstock.config.sections import RunConfig
    from penstock.shapes.standalone import standalone
    from penstock.supervisor.programs import shape_programs

    found = standalone(os.environ, options)
    if found.unknown:
        settings.note(f"These variables have no meaning for Penstock: {', '.join(found.unknown)}.")
    try:
        found.state.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"The directory {found.state} cannot be made: {error.strerror}.",
            remedy="Name another one: --storage-dir, or ELECTRIC_STORAGE_DIR.",
        ) from error
    service, run = ServiceSpec(f"grpc+unix://{directory / 'capture'}"), RunConfig()
    admin = directory / "shapes"
    return Instance(
        shape_programs(found, service, admin),
        listen=found.listen,
        state=found.state,
        service=service,
        admin=admin,
        restarts_max=run.restarts_max,
        parked_retry=run.parked_retry,
        stop_timeout=run.stop_timeout,
    )


def _state(settings: Settings, storage_dir: Path | None) -> Path:
    """Of the pipeline file, if there is one and no directory is named."""
    from penstock.config import Config
    from penstock.shapes.standalone import state_directory

    if storage_dir is None and settings.config_path.exists():
        return Config.load(settings.config_path).state
    return state_directory(os.environ, storage_dir)


def _row(shape: dict[str, Any]) -> tuple[str, ...]:
    where = shape["where"] or ""
    read_s = datetime.now(UTC).timestamp() - shape["last_read"]
    return (
        shape["handle"],
        shape["table"] + (" (of a subquery)" if shape["hidden"] else ""),
        where if len(where) <= _WHERE_SHOWN else where[: _WHERE_SHOWN - 1] + "…",
        shape["offset"],
        count(shape["waiting"]),
        size(shape["bytes_on_disk"]),
        age(max(0.0, read_s)),
    )
