"""Who may use the console, and by what a browser shows it.

A person shows a token or a password once and gets a cookie; programs show theirs with every request. A
cookie says who it is and until when, signed with a secret of the state directory and with what the person
showed: so it outlives a restart, and ends when the credential is changed or the name is taken from the
pipeline file. One that its person ended stays so (`ended`). It is not readable by scripts and not sent from
other sites. Whoever acts by a cookie also shows a second value, which only our own page can know
(`Session.proof`).

Credentials are compared by digests, all of them every time, so that no time tells which one was near.
Guesses are counted by address and together; beyond `FAILURES_MAX` in a minute nobody is let in for the rest
of it."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from penstock import durable
from penstock.config.console import ConsoleConfig
from penstock.console.ended import EndedSessions

Role = Literal["look", "act"]
SESSION_S = 12 * 3600
FAILURES_MAX = 10
FAILURES_OF_ALL_MAX = 100
_WINDOW_S = 60.0
_ADDRESSES_MAX = 1024
_SECRET_BYTES = 32
_LOCAL_NAME = "local"
_PARTS = 4
CODE_S = 60.0
_CODE_PREFIX = "code-"


@dataclass(frozen=True, slots=True)
class Person:
    name: str
    role: Role


@dataclass(frozen=True, slots=True)
class Session:
    """`proof`: what a request that changes something must show beside the cookie."""

    person: Person
    nonce: str
    expires: int
    proof: str

    def is_proven_by(self, given: str) -> bool:
        return hmac.compare_digest(self.proof.encode(), given.encode(errors="replace"))


@dataclass(frozen=True, slots=True)
class _Credential:
    person: Person
    digest: bytes
    is_password: bool


class Access:
    def __init__(
        self, config: ConsoleConfig, directory: Path, clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._directory = directory
        self._secret = _kept_secret(directory / "secret")
        self.own_token = None if config.access else _kept_secret(directory / "token").hex()
        self._credentials = [_credential(each.name, each.role, each) for each in config.access]
        if self.own_token is not None:
            person = Person(_LOCAL_NAME, "act")
            self._credentials.append(_Credential(person, _digest(self.own_token), is_password=False))
        self._ended = EndedSessions(directory / "ended.json", SESSION_S, clock)
        self._failures = _Failures()
        self._lock = threading.Lock()

    def by_token(self, token: str, address: str) -> Person | None:
        return self._known(address, _digest(token), None)

    def by_code(self, code: str, address: str) -> Person | None:
        """By a code of `one_time_code`, which nobody can use again then."""
        path = self._directory / _code_name(code)
        person = next((each.person for each in self._credentials if each.person.name == _LOCAL_NAME), None)
        try:
            made_at = path.stat().st_mtime
            path.unlink()
        except OSError:
            person = None
        else:
            if self.own_token is None or self._clock() - made_at > CODE_S:
                person = None
        if person is None:
            with self._lock:
                self._failures.add(address, time.monotonic())
        return person

    def by_password(self, name: str, password: str, address: str) -> Person | None:
        return self._known(address, _digest(password), name)

    def is_shut(self, address: str) -> bool:
        """Whether too many guesses came, from there or from everywhere."""
        with self._lock:
            return self._failures.are_too_many(address, time.monotonic())

    def begin(self, person: Person) -> tuple[str, Session]:
        """A cookie's value, and the session it stands for."""
        nonce, expires = secrets.token_urlsafe(18), int(self._clock()) + SESSION_S
        said = f"{person.name.encode().hex()}.{expires}.{nonce}"
        value = f"{said}.{self._signature(said, person.name)}"
        return value, self._session(person, nonce, expires)

    def session(self, cookie: str) -> Session | None:
        parts = cookie.split(".")
        if len(parts) != _PARTS or not parts[1].isdigit() or len(cookie) > 512:
            return None
        said, given = cookie.rpartition(".")[0], parts[3]
        try:
            name = bytes.fromhex(parts[0]).decode()
        except ValueError:
            return None
        person = next((each.person for each in self._credentials if each.person.name == name), None)
        is_signed = hmac.compare_digest(given.encode(), self._signature(said, name).encode())
        if person is None or not is_signed:
            return None
        session = self._session(person, parts[2], int(parts[1]))
        return None if self.is_ended(session) else session

    def end(self, session: Session) -> None:
        self._ended.add(session.person.name, session.nonce, session.expires)

    def is_ended(self, session: Session) -> bool:
        """By itself, or by its person."""
        return session.expires < self._clock() or self._ended.has(
            session.person.name, session.nonce, session.expires
        )

    def _known(self, address: str, digest: bytes, name: str | None) -> Person | None:
        found: Person | None = None
        for each in self._credentials:
            is_same = hmac.compare_digest(each.digest, digest)
            fits = not each.is_password if name is None else each.is_password and each.person.name == name
            if is_same and fits:
                found = each.person
        with self._lock:
            if found is None:
                self._failures.add(address, time.monotonic())
        return found

    def _session(self, person: Person, nonce: str, expires: int) -> Session:
        proof = hmac.new(self._secret, f"proof.{nonce}".encode(), "sha256").hexdigest()
        return Session(person, nonce, expires, proof)

    def _signature(self, said: str, name: str) -> str:
        shown = next((each.digest for each in self._credentials if each.person.name == name), b"")
        return hmac.new(self._secret, said.encode() + b"." + shown, "sha256").hexdigest()


def one_time_code(directory: Path) -> str:
    """For a link that others on the machine may see: whoever uses it first, within `CODE_S`, is let in.

    Only its digest is written down, as the name of a file, so that the console of another process knows it.
    """
    for old in directory.glob(f"{_CODE_PREFIX}*"):
        with suppress(OSError):
            if time.time() - old.stat().st_mtime > CODE_S:
                old.unlink()
    code = secrets.token_urlsafe(24)
    path = directory / _code_name(code)
    path.touch(mode=0o600, exist_ok=False)
    return code


def _code_name(code: str) -> str:
    return f"{_CODE_PREFIX}{_digest(code).hex()}"


class _Failures:
    """Of the last minute, by address; bounded whatever addresses come."""

    def __init__(self) -> None:
        self._by_address: OrderedDict[str, deque[float]] = OrderedDict()
        self._all: deque[float] = deque(maxlen=FAILURES_OF_ALL_MAX)

    def add(self, address: str, at: float) -> None:
        self._all.append(at)
        self._by_address.setdefault(address, deque(maxlen=FAILURES_MAX)).append(at)
        self._by_address.move_to_end(address)
        while len(self._by_address) > _ADDRESSES_MAX:
            self._by_address.popitem(last=False)

    def are_too_many(self, address: str, now: float) -> bool:
        own = self._by_address.get(address, deque())
        return _recent(own, now) >= FAILURES_MAX or _recent(self._all, now) >= FAILURES_OF_ALL_MAX


def _recent(times: deque[float], now: float) -> int:
    return sum(at > now - _WINDOW_S for at in times)


def _credential(name: str, role: Role, given: object) -> _Credential:
    token, password = getattr(given, "token", None), getattr(given, "password", None)
    shown = token if token is not None else password
    assert shown is not None, "checked with the pipeline file"
    return _Credential(Person(name, role), _digest(shown.get_secret_value()), is_password=token is None)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()


def _kept_secret(path: Path) -> bytes:
    """Made once, for this user alone; of two processes that make it, both have the same."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    content = secrets.token_bytes(_SECRET_BYTES).hex().encode()
    if not path.exists():
        before = os.umask(0o077)
        try:
            durable.create_exclusively(path, content)
        finally:
            os.umask(before)
    return bytes.fromhex(path.read_text().strip())
