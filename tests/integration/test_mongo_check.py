"""What `check` says of real servers: each prerequisite that is not met has its own message and remedy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from penstock.core.stream import StreamId
from penstock.sources.cursor import CursorChoice
from penstock.sources.finding import Finding, StreamNeed
from penstock.sources.mongodb.check import Oplog, check, judge_oplog
from tests.mongo_server import MongoServer

pytestmark = pytest.mark.integration

ROWS = StreamId("shop", "rows")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MongoServer]:
    """With users of several rights; the password of each is its name."""
    with MongoServer(tmp_path_factory.mktemp("secured"), secured=True) as running:
        shop = running.client["shop"]
        shop["rows"].insert_many([{"_id": number, "v": number, "_op": "x"} for number in range(10)])
        shop.create_collection("images", changeStreamPreAndPostImages={"enabled": True})
        shop.create_collection("capped", capped=True, size=10_000)
        shop.create_collection("series", timeseries={"timeField": "t"})
        shop.create_collection("view", viewOn="rows")
        _add_users(running)
        yield running


def _add_users(server: MongoServer) -> None:
    def grant(collection: str, *actions: str) -> dict[str, object]:
        return {"resource": {"db": "shop", "collection": collection}, "actions": list(actions)}

    admin = server.client.admin
    roles = {
        "finder": [grant("", "find", "listCollections", "collStats")],
        "one": [grant("", "listCollections", "collStats"), grant("rows", "find", "changeStream")],
        "nobody": [{"resource": {"db": "other", "collection": ""}, "actions": ["find"]}],
    }
    for name, privileges in roles.items():
        admin.command("createRole", name, privileges=privileges, roles=[])
        admin.command("createUser", name, pwd=name, roles=[name])
    own = {"role": "readWrite", "db": "penstock"}
    admin.command("createUser", "reader", pwd="reader", roles=[{"role": "read", "db": "shop"}, own])


def checked(server: MongoServer, user: str, *needs: StreamNeed) -> list[Finding]:
    findings = check(server.url_of(user, user), needs or [StreamNeed(ROWS)], database="shop")
    for finding in findings:
        assert finding.remedy or finding.level == "ok", finding
        assert "s3cret" not in finding.message + finding.remedy
    return findings


def problems(findings: Sequence[Finding]) -> dict[str, str]:
    return {each.name: each.message for each in findings if each.level != "ok"}


def test_the_role_read_and_a_collection_of_our_own_are_enough(secured: MongoServer) -> None:
    findings = checked(secured, "reader")
    assert problems(findings).keys() == {"oplog"}  # whose window it may not see
    named = {each.name: each for each in findings}
    assert named["connection"].message.startswith("Connected to mongodb://reader:***@")
    assert named["server version"].message == "MongoDB 6.0.5."
    assert "rs0" in named["replica set"].message
    assert named["table"].message == "About 10 documents."


def test_an_administrator_sees_the_oplog_too(secured: MongoServer) -> None:
    findings = check(secured.url, [StreamNeed(ROWS)])
    assert problems(findings) == {}
    named = {each.name: each.message for each in findings}
    assert "not dropped an entry" in named["oplog"]
    assert named["feature compatibility version"] == "The feature compatibility version is 6.0."


@pytest.mark.parametrize(
    ("user", "message"),
    [
        ("finder", "The user finder@admin may not follow its changes (changeStream)."),
        ("nobody", "The user nobody@admin may not list the collections of shop."),
    ],
)
def test_a_right_that_is_missing_is_named_with_what_grants_it(
    secured: MongoServer, user: str, message: str
) -> None:
    found = [each for each in checked(secured, user) if each.name == "privileges"]
    assert [each.message.startswith(message) for each in found] == [True]
    assert f'grantRolesToUser("{user}", [{{role: "read", db: "shop"}}])' in found[0].remedy
    assert found[0].level == "error"


def test_a_collection_that_may_be_followed_alone_is_and_a_pattern_takes_the_whole(
    secured: MongoServer,
) -> None:
    [alone] = [each for each in checked(secured, "one") if each.name == "change stream"]
    assert (alone.level, alone.stream) == ("ok", "shop.rows")
    assert alone.message == (
        "The user one@admin may follow this collection, and not the whole database: it is read by a stream "
        "of its own."
    )
    assert "privileges" not in problems(checked(secured, "one"))
    [refused] = [
        each
        for each in checked(secured, "one", StreamNeed(StreamId("shop", "ro*"), by_pattern=True))
        if each.name == "privileges"
    ]
    assert "a pattern takes a change stream of all collections" in refused.message
    assert 'grantRolesToUser("one", [{role: "read", db: "shop"}])' in refused.remedy


def test_a_stream_of_the_whole_cluster_takes_more_than_the_role_of_a_database(secured: MongoServer) -> None:
    found = check(secured.url_of("reader", "reader"), [StreamNeed(ROWS)])
    [alone] = [each for each in found if each.name == "change stream"]
    assert "not the whole cluster" in alone.message
    pattern = StreamNeed(StreamId("shop", "ro*"), by_pattern=True)
    [missing] = [
        each for each in check(secured.url_of("reader", "reader"), [pattern]) if each.name == "privileges"
    ]
    assert 'role: "readAnyDatabase", db: "admin"' in missing.remedy


def test_a_full_refresh_asks_for_no_change_stream(secured: MongoServer) -> None:
    found = checked(secured, "finder", StreamNeed(ROWS, mode="full_refresh"))
    assert problems(found).keys() == {"control"}
    [missing] = [each for each in found if each.name == "control"]
    assert "(find, insert, update, remove)" in missing.message
    assert 'grantRolesToUser("finder", [{role: "readWrite", db: "penstock"}])' in missing.remedy


def test_wrong_passwords_and_missing_names_are_findings(secured: MongoServer) -> None:
    [finding] = check(secured.url_of("reader", "other"), [StreamNeed(ROWS)])
    assert finding.level == "error"
    assert "password is wrong" in finding.message
    found = checked(
        secured, "reader", StreamNeed(StreamId("shop", "no")), StreamNeed(StreamId("shop", "no*"))
    )
    assert [(each.level, each.message) for each in found if each.name == "table"] == [
        ("error", "There is no such collection."),
        ("warning", "No collection matches this pattern."),
    ]


def test_what_has_no_change_stream_is_refused_by_name_and_left_out_of_patterns(secured: MongoServer) -> None:
    needs = [StreamNeed(StreamId("shop", name)) for name in ("view", "series", "capped")]
    found = {each.stream: each for each in checked(secured, "reader", *needs) if each.name == "table kind"}
    assert found["shop.view"].message.startswith("There is no change stream of a view")
    assert found["shop.series"].message.startswith("There is no change stream of a time series")
    assert [found[f"shop.{name}"].level for name in ("view", "series", "capped")] == [
        "error",
        "error",
        "warning",
    ]
    by_pattern = checked(secured, "reader", StreamNeed(StreamId("shop", "*"), by_pattern=True))
    left_out = [each.stream for each in by_pattern if "leaves this out" in each.message]
    assert left_out == ["shop.series"]
    refreshed = [StreamNeed(StreamId("shop", name), mode="full_refresh") for name in ("view", "series")]
    assert problems(checked(secured, "reader", *refreshed)) == {}


def test_images_are_asked_for_where_they_matter(secured: MongoServer) -> None:
    full = checked(secured, "reader", StreamNeed(ROWS, replica_identity="full"))
    [finding] = [each for each in full if each.name == "images"]
    assert finding.level == "error"
    assert 'collMod: "rows"' in finding.remedy
    append = checked(secured, "reader", StreamNeed(ROWS, write="append"))
    assert problems(append)["images"].startswith("Without post-images")
    kept = checked(secured, "reader", StreamNeed(StreamId("shop", "images"), replica_identity="full"))
    assert [each.level for each in kept if each.name == "images"] == ["ok"]


def test_what_a_stream_asks_of_columns_is_judged_by_the_sampled_fields(secured: MongoServer) -> None:
    need = StreamNeed(
        ROWS,
        write="append",
        columns=("v", "x", "_op"),
        types={"v": "list", "y": "text"},
        where="v > 1",
        cursor=CursorChoice(("z",)),
    )
    found = check(secured.url, [need], layout="fields")
    messages = [each.message for each in found if each.level == "error"]
    for part in (
        "`types` names the column y", "v of type long cannot be held as list", "`columns` names x",
        "`columns` lacks _id", "_op has the name of a column that Penstock adds", "`where` reads v",
        "`cursor` names the column z",
    ):  # fmt: skip
        assert any(part in message for message in messages), part
    broken = check(secured.url, [StreamNeed(ROWS, where="nothing = 1")], layout="fields")
    assert [each.name for each in broken if each.level == "error"] == ["selection"]


def test_a_standalone_server_keeps_no_changes(tmp_path_factory: pytest.TempPathFactory) -> None:
    with MongoServer(tmp_path_factory.mktemp("alone"), replicated=False) as alone:
        alone.client["shop"]["rows"].insert_one({"_id": 1})
        found = problems(check(alone.url, [StreamNeed(ROWS)]))
        assert found.keys() == {"replica set"}
        assert "not of a replica set" in found["replica set"]
        assert problems(check(alone.url, [StreamNeed(ROWS, mode="full_refresh")])) == {}


def test_a_server_that_does_not_answer_is_a_finding() -> None:
    [finding] = check("mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=300", [StreamNeed(ROWS)])
    assert (finding.name, finding.level) == ("connection", "error")


@pytest.mark.parametrize(
    ("hours", "share", "level"), [(2, 0.1, "ok"), (2, 1.0, "warning"), (30, 1.0, "ok"), (30, 0.5, "ok")]
)
def test_only_an_oplog_that_drops_entries_can_be_too_short(hours: int, share: float, level: str) -> None:
    finding = judge_oplog(Oplog(1_000, 1_000 + hours * 3600, int(share * 1000), 1000))
    assert finding.level == level
    assert f"{hours}.0 hours" in finding.message
