"""A console from its parts, and its process: as a part of `penstock run`, or by itself (`penstock
console`).
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from penstock import durable
from penstock.config import Config
from penstock.console.access import Access, one_time_code
from penstock.console.assets import read_assets
from penstock.console.audit import Audit
from penstock.console.history import History
from penstock.console.http import ConsoleServer
from penstock.console.routes import Routes
from penstock.console.watching import Watching
from penstock.core.errors import ConfigError

DIRECTORY = "console"
_PLACE = "served.json"


class Console:
    """Serves from when it is made until `stop`. `ask`: what the instance it shows says of itself."""

    def __init__(
        self,
        config: Config,
        config_path: Path,
        ask: Callable[[], dict[str, Any] | None],
    ) -> None:
        directory = config.state / DIRECTORY
        settings = config.console
        # Before anything of the directory is opened: one that waits for its address touches nothing there.
        self._server = ConsoleServer(settings.listen, frozenset(settings.hosts), _tls(config))
        self._stop = threading.Event()
        with ExitStack() as undone:
            undone.callback(self._server.stop)
            access = Access(settings, directory)
            self._audit = Audit(directory)
            self._history = History(
                directory / "history.sqlite",
                settings.history.total_seconds(),
                int(settings.history_bytes_max),
            )
            undone.callback(self._history.close)
            self._watching = Watching(config, self._history, ask)
            routes = Routes(
                config, config_path, access, self._audit, self._watching, self._history, read_assets()
            )
            undone.pop_all()
        self._thread = threading.Thread(
            target=self._watching.run, args=(self._stop,), name="console-watch", daemon=True
        )
        self.url = self._server.url
        self.warning = _warning(config)
        self.link = f"{self.url}/" if access.own_token is None else f"{self.url}/#token={access.own_token}"
        self._server.serve(routes.answer)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._server.stop()
        self._history.close()
        self._audit.close()


def _warning(config: Config) -> str:
    """Said at the start; empty, if there is nothing to say."""
    settings = config.console
    host = settings.listen.rpartition(":")[0].strip("[]")
    try:
        is_local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = host == "localhost"
    if is_local or settings.certificate is not None:
        return ""
    return (
        f"The console at {settings.listen} is plain HTTP: who reads the network reads tokens, passwords and "
        "values. Name `console.certificate` and `console.key`, or have a proxy before it speak TLS."
    )


def _tls(config: Config) -> ssl.SSLContext | None:
    settings = config.console
    if settings.certificate is None or settings.key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.certificate, settings.key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            "The console's certificate or key cannot be used.",
            remedy="`console.certificate` and `console.key` are PEM files that belong together.",
        ) from error
    return context


@contextmanager
def said_in(state: Path, url: str) -> Iterator[None]:
    """Have commands find the console of a run."""
    path = state / DIRECTORY / _PLACE
    own = {"url": url, "pid": os.getpid(), "host": socket.gethostname()}
    durable.replace(path, durable.to_json_bytes(own))
    try:
        yield
    finally:
        if _read(path) == own:
            path.unlink(missing_ok=True)


def link_of_running(config: Config) -> str | None:
    """The link to the console that is served for this state directory, if there is one on this machine."""
    path = config.state / DIRECTORY / _PLACE
    said = _read(path)
    if said is None or said.get("host") != socket.gethostname() or not _is_alive(said.get("pid")):
        return None
    if config.console.access:
        return f"{said['url']}/"
    return f"{said['url']}/#token={Access(config.console, config.state / DIRECTORY).own_token}"


def link_to_open(config: Config, link: str) -> str:
    """The same place for the command line of a browser, which others on the machine can read: instead of the
    token, which lets in for good, a code that does so once.
    """
    url, mark, _token = link.partition("#token=")
    return f"{url}#code={one_time_code(config.state / DIRECTORY)}" if mark else link


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _is_alive(pid: Any) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, TypeError, ValueError):
        return False
    except PermissionError:
        pass
    return True
