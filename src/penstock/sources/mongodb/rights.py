"""What the user may do, by what the server says of its privileges: no right is tried out.

Any user may ask for its own. Where the server asks nobody for a name, there are none, and all is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.sources.mongodb.connection import Client, query_errors

FOLLOW = "changeStream"


@dataclass(frozen=True, slots=True)
class Scope:
    """What a change stream is of: a collection, a database, or, if both are empty, the cluster."""

    database: str
    collection: str = ""


@dataclass(frozen=True, slots=True)
class Rights:
    """`user` as `name@database`; empty: the server has no users, or lets everyone in."""

    user: str
    privileges: Sequence[Mapping[str, Any]]

    def may(self, action: str, database: str, collection: str = "") -> bool:
        """`collection` empty: any of the database."""
        if not self.user:
            return True
        return any(
            action in each["actions"] and _covers(each["resource"], database, collection)
            for each in self.privileges
        )

    def followable(self, database: str) -> tuple[Scope, ...]:
        """Of what there can be change streams: of the database (empty: of the cluster) as a whole where that
        is allowed, else of what is named in the privileges."""
        if self.may(FOLLOW, database):
            return (Scope(database),)
        named = [each["resource"] for each in self.privileges if FOLLOW in each["actions"]]
        scopes = [Scope(each["db"] or database, each["collection"]) for each in named if "db" in each]
        wanted = [each for each in scopes if each.database and database in ("", each.database)]
        return tuple(each for each in dict.fromkeys(wanted) if not each.collection.startswith("system."))


def read_rights(client: Client) -> Rights:
    with query_errors("asking for the user's privileges"):
        answer = client.admin.command("connectionStatus", showPrivileges=True)["authInfo"]
    users = answer["authenticatedUsers"]
    user = f"{users[0]['user']}@{users[0]['db']}" if users else ""
    return Rights(user, answer.get("authenticatedUserPrivileges", []))


def _covers(resource: Mapping[str, Any], database: str, collection: str) -> bool:
    """An empty name in a resource stands for all, but for the collections of the system."""
    if resource.get("anyResource"):
        return True
    if "db" not in resource or resource["db"] not in ("", database):
        return False
    return resource["collection"] == "" or (collection != "" and resource["collection"] == collection)
