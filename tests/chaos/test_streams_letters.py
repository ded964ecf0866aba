"""A target that refuses one key: the key's events wait as dead letters, in order, and all others flow on.

A broker refuses records that are too large for their topic; Kinesis, calls that have a record which it calls
invalid. Nothing of the key may overtake what was refused, nothing may be acknowledged before it is on disk,
and once the target takes it a replay delivers all, as if it had never been refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pytest

from tests.chaos.matrix import LEVEL
from tests.chaos.stream_chain import skip_unless, was_struck
from tests.chaos.stream_matrix import LETTERS, REFUSING, cases
from tests.chaos.stream_targets import OfKafka, OfKinesis, Target, target
from tests.conftest import Database, wait_until
from tests.failure_plan import Fault, Plan
from tests.kinesis_proxy import HttpFailureProxy
from tests.kinesis_server import Kinesalite
from tests.oracle import OPTIONS
from tests.oracle_history import audited, install_audit
from tests.stream_instances import StreamPipeline, running
from tests.stream_reader import Told, assert_told

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

REFUSED_BYTES, TAKEN_BYTES = 400_000, 200_000
TABLE = "public.items"
BODY = f"(SELECT string_agg(md5(n::text), '') FROM generate_series(1, {REFUSED_BYTES // 32}) n)"
#: Not those of the rows that nudge the source: a Kinesis stream has all tables, and refuses by key.
KEYS = range(1001, 1021)
REFUSED_KEY = KEYS[6]
#: Of the calls that Kinesis takes once it refuses the key: late parts of the one that had it.
LOST_ANSWERS = (4, 5)


class Refusal(Protocol):
    """A target that can be told to refuse the key, and then to take it."""

    @property
    def at(self) -> Target: ...

    @property
    def section(self) -> Mapping[str, Any]: ...

    def refuse(self) -> None: ...

    def take(self, slot: str) -> None: ...


@dataclass
class TooLarge:
    """From the beginning: no other key has such a large row."""

    at: OfKafka

    @property
    def section(self) -> Mapping[str, Any]:
        return {
            **self.at.section,
            "properties": {"message.max.bytes": "8000000"},
            "topic_config": {"max.message.bytes": str(TAKEN_BYTES)},
            "compression": "none",
        }

    def refuse(self) -> None:
        """It does."""

    def take(self, slot: str) -> None:
        self.at.server.configure_topic(f"{slot}.{TABLE}", {"max.message.bytes": "8000000"})


@dataclass
class Invalid:
    """A call with the key is refused whole, so it must be found out which of its records is the reason.

    Of some of its parts the answers get lost then, after those of others have come.
    """

    at: OfKinesis
    proxy: HttpFailureProxy

    @property
    def section(self) -> Mapping[str, Any]:
        return self.at.section

    def refuse(self) -> None:
        self.proxy.plan = Plan(exactly={("PutRecords", nth): Fault("lost") for nth in LOST_ANSWERS})
        self.proxy.invalid = f"[{REFUSED_KEY}]"

    def take(self, slot: str) -> None:
        self.proxy.invalid = None


@contextmanager
def refusing(name: str, request: pytest.FixtureRequest, directory: Path) -> Iterator[Refusal]:
    with target(name, request, directory) as at:
        if isinstance(at, OfKafka):
            yield TooLarge(at)
            return
        assert isinstance(at, OfKinesis)
        kinesis: Kinesalite = at.server
        with HttpFailureProxy(kinesis.port) as proxy:
            yield Invalid(OfKinesis(kinesis, proxy.endpoint, at.stream), proxy)


@pytest.mark.skipif(LEVEL == "short", reason="only by make chaos-once and make chaos")
@pytest.mark.parametrize(
    ("name", "rule"),
    [*((name, "") for name in REFUSING), *cases(LETTERS, targets=REFUSING)],
    ids=str,
)
def test_a_refused_key_waits_in_order_while_all_others_flow_on(
    database: Database, request: pytest.FixtureRequest, tmp_path: Path, name: str, rule: str
) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY, body text, version serial)")
    install_audit(database.url, [TABLE])
    with refusing(name, request, tmp_path) as refusal, ExitStack() as stack:
        at = refusal.at
        section = {**refusal.section, "dead_letter": {"max_share": 1.0}}
        pipeline = StreamPipeline(
            database, tmp_path / "pipeline", name, section, [TABLE], environment=at.environment
        )
        (instance,) = stack.enter_context(running(pipeline))

        struck = not rule

        def strike(place: str) -> None:
            nonlocal struck
            if rule.startswith(place):
                struck = was_struck(instance.lane, rule)
                instance.lane.start()

        connection = stack.enter_context(psycopg.connect(database.url, options=OPTIONS, autocommit=True))
        connection.execute("INSERT INTO items SELECT unnest(%s::int[]), 'first'", (list(KEYS),))
        instance.start(rule)
        instance.lane.wait_until_running()
        pipeline.wait_until_level(instance)
        refusal.refuse()
        _change_items(connection)
        strike("streams.letter_written")
        _change_items(connection)
        pipeline.wait_until_level(instance)
        _assert_waits(database, at.read(pipeline.name, [TABLE]), pipeline.dead_letters())

        refusal.take(pipeline.name)
        pipeline.command("dlq", "replay", "--lane", name, "--yes")
        strike("streams.letter_replayed")
        wait_until(lambda: pipeline.dead_letters() == [], "the letters to be delivered", timeout_s=120)
        _change_items(connection)
        pipeline.wait_until_level(instance)
        assert_told(database.url, TABLE, at.read(pipeline.name, [TABLE]), one_place=at.one_place)
    skip_unless(struck, rule)


def _assert_waits(database: Database, told: list[Told], letters: list[dict[str, Any]]) -> None:
    """All of the refused key waits in order, nothing of it came by; all others are there."""
    told = [each for each in told if each.table == TABLE]
    of_key = [each for each in told if each.key == (str(REFUSED_KEY),)]
    assert [each.op for each in of_key] == ["r"], "nothing of the key came behind what was refused"
    assert {letter["key"] for letter in letters} == {b"[%d]" % REFUSED_KEY}
    names = [(letter["tx"], letter["op"], letter["kind"] == ord("n")) for letter in letters]
    assert names == sorted(names), "the key's events wait in order"
    layout, audit = audited(database.url, TABLE)
    history = layout.by_key(audit)[(str(REFUSED_KEY),)]
    changes = [name for name in names if not name[2]]
    assert len(changes) == len(history) - 1, "each of them once, all but the loaded row"
    others = Counter(each.key for each in told if each.is_change)
    expected = Counter({key: len(each) - 1 for key, each in layout.by_key(audit).items()})
    assert others == expected - Counter({(str(REFUSED_KEY),): len(history)}), "all others flow on"


def _change_items(connection: psycopg.Connection[Any]) -> None:
    """One change that is too large, amid those of others; then the key goes on between theirs."""
    body = f"CASE id WHEN {REFUSED_KEY} THEN {BODY} ELSE 'all' END"
    connection.execute(f"UPDATE items SET body = {body}, version = DEFAULT".encode())
    again = "UPDATE items SET body = 'again', version = DEFAULT WHERE id = %s"
    for key in KEYS:
        connection.execute(again, (key,))
        connection.execute(again, (REFUSED_KEY,))
    connection.execute("DELETE FROM items WHERE id = %s", (REFUSED_KEY,))
    connection.execute("INSERT INTO items VALUES (%s, 'new')", (REFUSED_KEY,))
