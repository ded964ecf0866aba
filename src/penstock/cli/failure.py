"""How a command ends when it does not end well: what happened, to which stream, what to do.

No traceback unless `--verbose` asks for it, and never one that shows values of variables.
"""

from __future__ import annotations

import traceback

from rich.panel import Panel
from rich.text import Text

from penstock.cli.settings import Settings
from penstock.core.errors import ConfigError, PenstockError

UNEXPECTED = 1
DIFFERENT = 10
NOT_COMPARED = 11
INTERRUPTED = 130
_PANEL_WIDTH_MAX = 100


def report_error(settings: Settings, error: PenstockError) -> int:
    """Print the error; gives the exit code."""
    if settings.verbose:
        settings.err.print(Text("".join(traceback.format_exception(error))), soft_wrap=True)
    if settings.json:
        settings.emit_json({"error": error.to_json()})
    else:
        settings.err.print(_panel(settings, error))
    return error.exit_code


def report_unexpected(settings: Settings, error: Exception) -> int:
    # The message of an exception that is not ours may quote a row or a password.
    wrapped = PenstockError(
        f"Penstock met an error it does not know: {type(error).__name__}.",
        remedy="Run the command again with --verbose for the place in the code, and report it. "
        "What was committed stays committed.",
    )
    wrapped.__cause__ = error
    report_error(settings, wrapped)
    return UNEXPECTED


def report_interrupted(settings: Settings) -> int:
    message = "Stopped as asked. What is committed stays; the same command goes on from there."
    if settings.json:
        settings.emit_json({"error": {"code": "interrupted", "message": message}})
    else:
        settings.note(message)
    return INTERRUPTED


def exit_codes() -> dict[int, str]:
    """Every exit code with what it means, for the help and the documentation."""
    codes = {
        0: "Done.",
        UNEXPECTED: "An error of no kind below.",
        ConfigError.exit_code: "The command or the pipeline file is wrong; nothing was done.",
        DIFFERENT: "`verify` found differences between source and tables.",
        NOT_COMPARED: "`verify` found no difference, and could not compare every stream.",
        INTERRUPTED: "Stopped by Ctrl-C or SIGTERM; the same command goes on from there.",
    }
    pending = list(PenstockError.__subclasses__())
    while pending:
        kind = pending.pop(0)
        pending += kind.__subclasses__()
        codes.setdefault(kind.exit_code, (kind.__doc__ or kind.code).split("\n")[0])
    return dict(sorted(codes.items()))


def _panel(settings: Settings, error: PenstockError) -> Panel:
    body = Text(error.message, style="bold")
    if error.detail:
        body.append(f"\n\n{error.detail}", style="not bold")
    if error.remedy:
        body.append("\n\nWhat to do: ", style="not bold green")
        body.append(error.remedy, style="not bold")
    title = f"{error.code} error" + (f" · {error.stream}" if error.stream else "")
    width = min(settings.err.width, _PANEL_WIDTH_MAX)
    return Panel(body, title=Text(title), title_align="left", border_style="red", width=width)
