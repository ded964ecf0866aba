"""Who may do what: every route says which role it needs, and is reached in no other way.

    nothing     the page and its parts, logging in: no data in any of them
    look        everything that is shown
    act         what changes something, and values of rows; each is in the audit log before it happens

A request that changes something must come from our own page: its `Origin` is ours, its body is JSON (which
other sites cannot send without asking first, and nobody says yes), and whoever is known by a cookie shows
the session's proof too."""

from __future__ import annotations

import base64
import binascii
import json
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import structlog

from penstock.config import Config
from penstock.console.access import SESSION_S, Access, Person, Role, Session
from penstock.console.actions import ACTIONS, given_of
from penstock.console.assets import PAGE, Asset
from penstock.console.audit import Audit
from penstock.console.history import History
from penstock.console.http import Answer, Request, answer_json, refused
from penstock.console.paths import Route
from penstock.console.reading import RETRY_AFTER_S, BusyError
from penstock.console.screens import Screens
from penstock.console.watching import Watching
from penstock.core.errors import PenstockError
from penstock.logs import log_unexpected

_logger = structlog.get_logger("penstock.console")
_CREDENTIAL_MAX = 4096
VALUES_BYTES_MAX = 32 << 20


@dataclass(frozen=True, slots=True)
class Caller:
    """`session`: there, if it is known by a cookie."""

    person: Person
    session: Session | None


Handler = Callable[[Request, Caller], Answer]


class Routes:
    def __init__(
        self,
        config: Config,
        config_path: Path,
        access: Access,
        audit: Audit,
        watching: Watching,
        history: History,
        assets: Mapping[str, Asset],
    ) -> None:
        self._config = config
        self._access = access
        self._audit = audit
        self._watching = watching
        self._history = history
        self._assets = assets
        self._screens = Screens(config, config_path)
        self.cookie_name = "penstock_console"
        look, act = self._looks(), self._acts()
        self._table: dict[Route, tuple[str, Role, Handler]] = {
            **{route: ("GET", "look", handler) for route, handler in look.items()},
            **{route: ("POST", "act", handler) for route, handler in act.items()},
        }

    def _looks(self) -> dict[Route, Handler]:
        screens = self._screens
        return {
            ("api", "view"): lambda _request, _caller: answer_json(self._watching.view),
            ("api", "events"): self._events,
            ("api", "session"): lambda request, caller: answer_json(self._who(caller)),
            ("api", "history"): self._read_history,
            ("api", "series"): lambda _request, _caller: answer_json({"series": self._history.names()}),
            ("api", "audit"): lambda _request, _caller: answer_json({"audit": self._audit.newest(200)}),
            **{("api", *name.split(".")): _shown(screen) for name, screen in screens.looks().items()},
        }

    def _acts(self) -> dict[Route, Handler]:
        return {
            ("api", "act"): self._act,
            ("api", "values"): self._values,
        }

    # Every request

    def answer(self, request: Request) -> Answer:
        if request.route == () or request.route[0] == "assets":
            return self._asset(request)
        if request.route == ("api", "login"):
            return self._login(request)
        if request.method == "POST" and (wrong := _not_from_our_page(request)) is not None:
            return wrong
        caller = self._caller(request)
        if isinstance(caller, Answer):
            return caller
        if request.route == ("api", "logout") and request.method == "POST":
            return self._logout(request, caller)
        found = self._table.get(request.route)
        if found is None:
            return refused(404, "There is nothing by that name.")
        method, role, handler = found
        if request.method != method and not (method == "GET" and request.method == "HEAD"):
            return refused(405, f"This is asked by {method}.")
        if request.method == "POST" and (wrong := _unproven(request, caller)) is not None:
            return wrong
        if role == "act" and (wrong := self._may_not_act(request, caller)) is not None:
            return wrong
        try:
            return handler(request, caller)
        except PenstockError as error:
            return answer_json({"error": error.to_json()}, 409)
        except BusyError:
            message = "Others are being read just now, which takes some seconds; come again then."
            return answer_json({"error": {"message": message}}, 503, {"Retry-After": str(RETRY_AFTER_S)})
        except Exception as error:
            log_unexpected("a request to the console", error)
            return refused(500, "Something went wrong; the log of the console says what.")

    def _asset(self, request: Request) -> Answer:
        name = PAGE if request.route == () else request.route[-1]
        asset = self._assets.get(name)
        if asset is None or len(request.route) not in (0, 2) or request.method not in ("GET", "HEAD"):
            return refused(404, "There is nothing by that name.")
        headers = {"ETag": asset.tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == asset.tag:
            return Answer(304, b"", asset.kind, headers)
        return Answer(200, asset.content, asset.kind, headers)

    # Who it is

    def _caller(self, request: Request) -> Caller | Answer:
        cookie = self._cookie(request)
        session = self._access.session(cookie) if cookie is not None else None
        if session is not None:
            return Caller(session.person, session)
        given = request.headers.get("authorization", "")
        if not given:
            return refused(401, "Log in first.")
        if self._access.is_shut(request.address):
            return self._shut(request, "authorization")
        person = self._by_header(given, request.address)
        if person is None:
            self._audit.refuse("", request.address, "authorization")
            return refused(401, "That is not known here.")
        return Caller(person, None)

    def _by_header(self, given: str, address: str) -> Person | None:
        kind, _, shown = given.partition(" ")
        if len(shown) > _CREDENTIAL_MAX:
            return None
        if kind.lower() == "bearer":
            return self._access.by_token(shown.strip(), address)
        if kind.lower() == "basic":
            try:
                name, _, password = base64.b64decode(shown.strip(), validate=True).decode().partition(":")
            except (binascii.Error, UnicodeDecodeError):
                return None
            return self._access.by_password(name, password, address)
        return None

    def _cookie(self, request: Request) -> str | None:
        try:
            found = SimpleCookie(request.headers.get("cookie", "")).get(self._cookie_of(request))
        except CookieError:
            return None
        return None if found is None else found.value

    def _cookie_of(self, request: Request) -> str:
        """Cookies know no ports: two consoles on one machine must not take each other's."""
        port = request.host.rpartition(":")[2] if ":" in request.host else ""
        return f"{self.cookie_name}_{port}" if port.isdigit() else self.cookie_name

    def _login(self, request: Request) -> Answer:
        if request.method != "POST":
            return refused(405, "This is asked by POST.")
        if (wrong := _not_from_our_page(request)) is not None:
            return wrong
        if self._access.is_shut(request.address):
            return self._shut(request, "log in")
        match _json_of(request):
            case {"token": str(token), **rest} if not rest and len(token) <= _CREDENTIAL_MAX:
                person = self._access.by_token(token.strip(), request.address)
            case {"code": str(code), **rest} if not rest and len(code) <= _CREDENTIAL_MAX:
                person = self._access.by_code(code, request.address)
            case {"name": str(name), "password": str(password), **rest} if (
                not rest and len(name) + len(password) <= _CREDENTIAL_MAX
            ):
                person = self._access.by_password(name, password, request.address)
            case _:
                return refused(400, "A token is wanted, or a name and a password.")
        if person is None:
            self._audit.refuse("", request.address, "log in")
            return refused(401, "That is not known here.")
        value, session = self._access.begin(person)
        self._audit.write(person.name, request.address, "log in", "done")
        return answer_json(
            self._who(Caller(person, session)), headers={"Set-Cookie": self._set(request, value, SESSION_S)}
        )

    def _shut(self, request: Request, what: str) -> Answer:
        self._audit.refuse("", request.address, what)
        return refused(429, "Too many tries; wait a minute.")

    def _logout(self, request: Request, caller: Caller) -> Answer:
        if (wrong := _unproven(request, caller)) is not None:
            return wrong
        gone = {"Set-Cookie": self._set(request, "", 0)}
        try:
            if caller.session is not None:
                self._access.end(caller.session)
        except (PenstockError, OSError) as error:
            log_unexpected("ending a session", error)
            message = "The end of the session could not be saved; a restart of the console forgets it."
            return answer_json({"error": {"message": message}}, 500, gone)
        return answer_json({}, headers=gone)

    def _set(self, request: Request, value: str, age_s: int) -> str:
        # A proxy may have taken TLS off; the page says by which scheme it was opened.
        is_over_tls = request.secure or request.headers.get("origin", "").lower().startswith("https:")
        secure = "; Secure" if is_over_tls else ""
        return (
            f"{self._cookie_of(request)}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={age_s}{secure}"
        )

    def _who(self, caller: Caller) -> dict[str, Any]:
        may_act = caller.person.role == "act" and not self._config.console.read_only
        return {
            "name": caller.person.name,
            "role": caller.person.role,
            "may_act": may_act,
            "read_only": self._config.console.read_only,
            "proof": "" if caller.session is None else caller.session.proof,
            "pipeline": {
                "host": socket.gethostname(),
                "state": self._config.state.name,
                "lanes": [
                    "lake",
                    *(["shapes"] if self._config.lanes.shapes else []),
                    *self._config.lanes.streams,
                ],
                "stream_lanes": list(self._config.lanes.streams),
                "has_shapes": self._config.lanes.shapes is not None,
            },
        }

    def _may_not_act(self, request: Request, caller: Caller) -> Answer | None:
        if self._config.console.read_only:
            why = "This console only shows (`console.read_only`)."
        elif caller.person.role != "act":
            why = "You may look, and not act."
        else:
            return None
        self._audit.refuse(caller.person.name, request.address, "/".join(request.route))
        return refused(403, why)

    # What is answered

    def _events(self, _request: Request, caller: Caller) -> Answer:
        session = caller.session
        if session is None:
            return Answer(200, kind="text/event-stream", events=self._watching.events(lambda: True))
        return Answer(
            200,
            kind="text/event-stream",
            events=self._watching.events(lambda: not self._access.is_ended(session)),
        )

    def _read_history(self, request: Request, _caller: Caller) -> Answer:
        names = [name for name in request.fields.get("series", "").split(",") if name][:64]
        try:
            start, end = float(request.fields["from"]), float(request.fields["to"])
        except (KeyError, ValueError):
            return refused(400, "From when to when?")
        if not names or not 0 <= start < end < 1e11:
            return refused(400, "Which series, from when to when?")
        return answer_json({"series": self._history.read(names, start, end)})

    def _act(self, request: Request, caller: Caller) -> Answer:
        match _json_of(request):
            case {"action": str(name), "fields": dict(fields), **rest} if not rest and name in ACTIONS:
                action = ACTIONS[name]
            case _:
                return refused(400, "There is no such action.")
        given = given_of(action, fields)
        if given is None:
            return refused(400, "The action is not given as it should be.")
        who, address = caller.person.name, request.address
        self._audit.write(who, address, name, "asked", **given)
        try:
            said = action.carry_out(self._config, given)
        except PenstockError as error:
            self._audit.write(who, address, name, "failed", error=error.code, **given)
            raise
        except Exception as error:
            self._audit.write(who, address, name, "failed", error=type(error).__name__, **given)
            raise
        self._audit.write(who, address, name, "done", **given)
        return answer_json({"said": said})

    def _values(self, request: Request, caller: Caller) -> Answer:
        """Values of rows: given to whoever may act, and written down before."""
        match _json_of(request):
            case {"of": str(name), "fields": dict(fields), **rest} if not rest:
                screen = self._screens.values().get(name)
            case _:
                return refused(400, "Values of what?")
        if screen is None or not all(isinstance(each, str) for each in fields.values()):
            return refused(400, "Values of what?")
        # What a key is, is a value too: the audit log says of which stream, and not which key.
        kinds = ("lane", "stream", "letter", "step", "run")
        named = {key: value for key, value in fields.items() if key in kinds}
        if "from" in fields:
            named["versions"] = f"{fields['from']}-{fields.get('to', '')}"
        self._audit.write(caller.person.name, request.address, f"show values: {name}", "asked", **named)
        answer = answer_json(screen(fields))
        if len(answer.body) > VALUES_BYTES_MAX:
            return refused(409, "These are more values than one page shows; ask for fewer.")
        return answer


def _shown(screen: Callable[[dict[str, str]], Any]) -> Handler:
    return lambda request, _caller: answer_json(screen(request.fields))


def _not_from_our_page(request: Request) -> Answer | None:
    site = request.headers.get("sec-fetch-site", "same-origin")
    origin = request.headers.get("origin")
    if site not in ("same-origin", "none") or (origin is not None and not _is_own(origin, request)):
        return refused(403, "This comes from another site.")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return None if kind == "application/json" else refused(415, "Send JSON.")


def _is_own(origin: str, request: Request) -> bool:
    """The scheme is not compared: a proxy before us may have taken TLS off."""
    try:
        return urlsplit(origin).netloc.lower() == request.host
    except ValueError:
        return False


def _unproven(request: Request, caller: Caller) -> Answer | None:
    if caller.session is None:
        return None  # it showed its credential with this very request
    given = request.headers.get("x-penstock-proof", "")
    return None if caller.session.is_proven_by(given) else refused(403, "The request lacks the page's proof.")


def _json_of(request: Request) -> Any:
    try:
        return json.loads(request.body)
    except (ValueError, RecursionError):
        return None
