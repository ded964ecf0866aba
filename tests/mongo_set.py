"""A replica set of three real members, whose primary can be sent back or killed."""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from pymongo import MongoClient
from pymongo.errors import AutoReconnect, PyMongoError

from tests.conftest import wait_until
from tests.mongo_server import MongoServer

_HOST, _SET = "127.0.0.1", "rs0"
_MEMBERS = 3
_ELECTION_MS = 2_000
_STEPPED_DOWN_S = 20


class MongoSet(AbstractContextManager["MongoSet"]):
    """Started by `with`: it has a primary by then."""

    def __init__(self, directory: Path) -> None:
        self.members = [MongoServer(directory / f"member{number}") for number in range(_MEMBERS)]
        self._client: MongoClient[dict[str, Any]] | None = None

    @property
    def url(self) -> str:
        hosts = ",".join(f"{_HOST}:{member.port}" for member in self.members)
        return f"mongodb://{hosts}/?replicaSet={_SET}"

    @property
    def client(self) -> MongoClient[dict[str, Any]]:
        if self._client is None:
            self._client = self.connect()
        return self._client

    def connect(self, **options: Any) -> MongoClient[dict[str, Any]]:
        return MongoClient(self.url, serverSelectionTimeoutMS=60_000, **options)

    def __enter__(self) -> MongoSet:
        for member in self.members:
            member.launch()
        named = [
            {"_id": number, "host": f"{_HOST}:{member.port}"} for number, member in enumerate(self.members)
        ]
        config = {"_id": _SET, "members": named, "settings": {"electionTimeoutMillis": _ELECTION_MS}}
        with MongoClient[dict[str, Any]](_HOST, self.members[0].port, directConnection=True) as direct:
            direct.admin.command("replSetInitiate", config)
        wait_until(lambda: self._states().count("SECONDARY") == _MEMBERS - 1, "two secondaries", 120)
        self.primary()
        return self

    def __exit__(self, *_: object) -> None:
        if self._client is not None:
            self._client.close()
        for member in self.members:
            member.kill()

    def primary(self) -> MongoServer:
        """That which takes writes; waits until there is one."""
        found: list[MongoServer] = []

        def is_there() -> bool:
            with suppress(PyMongoError):
                address = self.client.admin.command("hello")["me"]
                found[:] = [each for each in self.members if address == f"{_HOST}:{each.port}"]
            return bool(found)

        wait_until(is_there, "a primary", 120)
        return found[0]

    def step_down(self) -> None:
        """Another member becomes the primary; this one stays up."""
        before = self.primary()
        with suppress(AutoReconnect):  # it may close its connections before it answers
            self.client.admin.command("replSetStepDown", _STEPPED_DOWN_S)
        wait_until(lambda: self.primary() is not before, "another primary", 120)

    def kill_primary(self) -> MongoServer:
        """As by a crash. It is not started again."""
        before = self.primary()
        before.kill()
        wait_until(lambda: self.primary() is not before, "another primary", 120)
        return before

    def _states(self) -> list[str]:
        with suppress(PyMongoError):
            return [each["stateStr"] for each in self.client.admin.command("replSetGetStatus")["members"]]
        return []
