"""`penstock console`: the link to the console of the run, or a console by itself."""

from __future__ import annotations

import contextlib
import threading
import webbrowser
from typing import Annotated

import typer
from pydantic import ValidationError

from penstock.cli.settings import settings_of
from penstock.config import Config
from penstock.config.console import ConsoleConfig
from penstock.core.errors import ConfigError


def console(
    context: typer.Context,
    listen: Annotated[
        str | None,
        typer.Option("--listen", metavar="HOST:PORT", help="Serve one here, whatever the run does."),
    ] = None,
    open_: Annotated[bool, typer.Option("--open", metavar="", help="Open it in a browser.")] = False,
) -> None:
    """Show the pipeline in a browser: print the link to the console of `penstock run`.

    If none runs on this machine, a console is served here until Ctrl-C, with what the state directory says.
    The link holds a token that lets whoever has it act, unless `console.access` says who may.
    """
    from penstock.console.serving import Console, link_of_running, link_to_open
    from penstock.supervisor.asking import running_status

    settings = settings_of(context)
    config = Config.load(settings.config_path)
    if listen is not None:
        config = config.model_copy(update={"console": _listening(config.console, listen)})
    link = link_of_running(config) if listen is None else None
    served = (
        None
        if link is not None
        else Console(config, settings.config_path, lambda: running_status(config.state))
    )
    link = link or (served.link if served is not None else "")
    if settings.json:
        settings.emit_json({"link": link, "serves": served is not None})
    else:
        settings.out.print(link, markup=False, highlight=False, soft_wrap=True)
    if open_:
        webbrowser.open(link_to_open(config, link))
    if served is not None and served.warning:
        settings.note(served.warning)
    if served is not None:
        settings.note("Served until Ctrl-C.")
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
        served.stop()


def _listening(console: ConsoleConfig, listen: str) -> ConsoleConfig:
    """The section with another address, by the same rules."""
    fields = {name: getattr(console, name) for name in ConsoleConfig.model_fields}
    try:
        return ConsoleConfig.model_validate({**fields, "listen": listen})
    except ValidationError as error:
        why = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        raise ConfigError(
            f"--listen {listen}: {why}.", remedy="See `console` in the pipeline file."
        ) from None
