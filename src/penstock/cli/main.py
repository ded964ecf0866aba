"""`penstock`: the application, its global options, and how every command ends."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from penstock import __version__
from penstock.cli import (
    check,
    compact,
    console,
    demo,
    discover,
    dlq,
    init,
    lane,
    pause,
    prepare,
    resync,
    run,
    shapes,
    state,
    status,
    sync,
    table,
    teardown,
    verify,
)
from penstock.cli.failure import exit_codes, report_error, report_interrupted, report_unexpected
from penstock.cli.log_output import configure_logs
from penstock.cli.settings import LogChoice, Settings
from penstock.cli.stopping import stop_on_sigterm
from penstock.core.errors import PenstockError


class _Commands(TyperGroup):
    """Ends every command with a documented exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except PenstockError as error:
            raise typer.Exit(report_error(_settings(ctx), error)) from None
        except KeyboardInterrupt:
            raise typer.Exit(report_interrupted(_settings(ctx))) from None


_EPILOG = "Exit codes:\n\n" + "\n".join(f"{code:>3}  {meaning}" for code, meaning in exit_codes().items())

app = typer.Typer(
    name="penstock",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog=_EPILOG.replace("[", r"\["),
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def _global_options(
    context: typer.Context,
    config: Annotated[
        Path,
        typer.Option("-c", "--config", metavar="FILE", help="The pipeline file.", envvar="PENSTOCK_CONFIG"),
    ] = Path("penstock.yaml"),
    json: Annotated[
        bool,
        typer.Option(
            "--json", metavar="", help="One JSON document on stdout; everything else goes to stderr."
        ),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", metavar="", help="Log what is done, and show tracebacks.")
    ] = False,
    log_format: Annotated[
        LogChoice,
        typer.Option(
            "--log-format",
            envvar="PENSTOCK_LOG_FORMAT",
            help="Log lines as JSON or for people; `auto`: as JSON with --json.",
        ),
    ] = "auto",
    version: Annotated[
        bool,
        typer.Option(
            "--version", metavar="", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Every change of an operational database, exactly once, in lake tables."""
    context.obj = Settings(config_path=config, json=json, verbose=verbose, log_format=log_format)
    configure_logs(context.obj)


app.command("init")(init.init)
app.command("check")(check.check)
app.command("discover")(discover.discover)
app.command("sync")(sync.sync)
app.command("run")(run.run)
app.command("console")(console.console)
app.command("resync")(resync.resync)
app.command("compact")(compact.compact)
app.command("verify")(verify.verify)
app.command("pause")(pause.pause)
app.command("resume")(pause.resume)
app.command("status")(status.status)
app.add_typer(state.app, name="state")
app.add_typer(table.app, name="table")
app.add_typer(dlq.app, name="dlq")
app.add_typer(lane.app, name="lane")
app.add_typer(shapes.app, name="shapes")
app.command("teardown")(teardown.teardown)
app.command("prepare")(prepare.prepare)
app.command("demo")(demo.demo)


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script."""
    given = global_options_first(sys.argv[1:] if arguments is None else arguments)
    stop_on_sigterm()
    try:
        app(given, prog_name="penstock")
    except Exception as error:
        settings = Settings(
            json="--json" in given,
            verbose=not {"-v", "--verbose"}.isdisjoint(given),
            json_lines=not {"run", "serve"}.isdisjoint(given),
        )
        sys.exit(report_unexpected(settings, error))


def global_options_first(arguments: Sequence[str]) -> list[str]:
    """`penstock sync --json` means `penstock --json sync`: global options may stand anywhere before `--`."""
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    first: list[str] = []
    rest: list[str] = []
    remaining = iter(arguments[:end])
    for argument in remaining:
        if argument in ("--json", "--verbose", "-v") or argument.startswith(("--config=", "--log-format=")):
            first.append(argument)
        elif argument in ("-c", "--config", "--log-format"):
            first += [argument, *(value for value in [next(remaining, None)] if value is not None)]
        else:
            rest.append(argument)
    return [*first, *rest, *arguments[end:]]


def _settings(context: Any) -> Settings:
    return context.obj if isinstance(context.obj, Settings) else Settings()
