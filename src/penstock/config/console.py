"""`console`: where the page is served, and who may use it.

An address that others can reach is refused unless it is said who may use it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field, model_validator

from penstock.config.base import Section
from penstock.config.values import Address, ByteSize, Duration, LocalPath, Token

_MIB = 1024 * 1024


class AccessConfig(Section):
    """Somebody who may use the console."""

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[!-9;-~]+$")]
    """Who it is, as the audit log says it; the user name, if there is a password."""
    role: Literal["look", "act"] = "look"
    """`look`: sees everything but values of rows. `act`: may also do things, and ask for values."""
    token: Token | None = None
    """What this person or program shows; `${file:/path}` or an environment variable."""
    password: Token | None = None
    """Instead of a token."""

    @model_validator(mode="after")
    def _shows_one_thing(self) -> AccessConfig:
        if (self.token is None) == (self.password is None):
            raise ValueError("needs a `token` or a `password`, and not both")
        return self


class ConsoleConfig(Section):
    """[The console](../guides/console.md): a page that shows the pipeline, as a part of `penstock run`."""

    enabled: bool = True
    """Whether `penstock run` has one."""
    listen: Address = "127.0.0.1:9781"
    """Where it is served; port 0 takes a free one. An address that others can reach needs `access`."""
    access: list[AccessConfig] = Field(default=[])
    """Who may use it. By default one person, by a token that is made in the state directory: `penstock
    console` prints the link with it."""
    read_only: bool = False
    """Nobody can do anything, whatever their role."""
    hosts: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9.-]+$")]] = Field(default=[])
    """Further names by which browsers reach it, for instance that of a proxy. Addresses and this machine's
    own name need not be named."""
    certificate: LocalPath | None = None
    """PEM file of a certificate: served over TLS."""
    key: LocalPath | None = None
    """PEM file of its key."""
    history: Annotated[Duration, Field(ge=timedelta(hours=1), le=timedelta(days=31))] = timedelta(hours=24)
    """How far back the plots reach, over restarts too."""
    history_bytes_max: ByteSize = Field(default=ByteSize(200 * _MIB), ge=8 * _MIB)
    """What the history may take on disk; the oldest goes first."""

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        host = self.listen.rpartition(":")[0]
        return host == "localhost" or host.startswith("127.")

    @model_validator(mode="after")
    def _is_guarded(self) -> ConsoleConfig:
        if not self.is_local and not self.access:
            raise ValueError("`listen` is an address that others can reach: say in `access` who may use it")
        if (self.certificate is None) != (self.key is None):
            raise ValueError("needs both `certificate` and `key`, or neither")
        names = [each.name for each in self.access]
        if len(set(names)) != len(names):
            raise ValueError("`access` has a name twice")
        return self
