"""Whether the brokers allow what a lane asks for, before anything is written.

Nothing is created: a topic that would be is only validated. Rights to transactions are asked for under an id
of our own with the lane's prefix, since to use one that is in use would shut out whoever uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TypeVar

from confluent_kafka import KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AclOperation

from penstock.config.streams import KafkaLaneConfig
from penstock.core.errors import DestinationError, PenstockError
from penstock.sources.finding import Finding
from penstock.streams.kafka import positions, settings
from penstock.streams.kafka.errors import code_of, target_error
from penstock.streams.kafka.patience import Patience
from penstock.streams.kafka.topics import Topics, is_topic_name

_ANSWER_S = 10.0
_Answer = TypeVar("_Answer")


def check(config: KafkaLaneConfig, identity: str, topics: Sequence[str]) -> list[Finding]:
    """All findings, in the order in which a person would mend them."""
    patience = Patience(_ANSWER_S)
    steps: list[tuple[str, Callable[[Topics], Iterator[Finding]]]] = [
        ("brokers", lambda seen: _check_brokers(seen, config)),
        ("positions topic", lambda seen: _check_positions(seen, positions.topic_name(identity))),
        ("topics", lambda seen: _check_topics(seen, config, topics)),
        ("transactions", lambda _: _check_transactions(config, identity, patience)),
    ]
    findings: list[Finding] = []
    try:
        seen = Topics(config, patience)
    except PenstockError as error:
        return [Finding.of_error("settings", error)]
    for name, step in steps:
        try:
            findings += step(seen)
        except PenstockError as error:
            findings.append(Finding.of_error(name, error))
            if name == "brokers":
                break
    return findings


def _check_brokers(seen: Topics, config: KafkaLaneConfig) -> Iterator[Finding]:
    count = len(seen.cluster().brokers)
    yield Finding("brokers", "ok", f"Connected to {config.bootstrap}: {count} broker{'s' * (count != 1)}.")


def _check_positions(seen: Topics, topic: str) -> Iterator[Finding]:
    if seen.count(topic) is None:
        seen.create(topic, 1, positions.CONFIG, validate_only=True)
        yield Finding("positions topic", "ok", f"The topic {topic} does not exist yet; the lane creates it.")
        return
    seen.refuse_deletion(topic)
    yield from _check_rights(seen, topic, "positions topic", {AclOperation.WRITE, AclOperation.READ})


def _check_topics(seen: Topics, config: KafkaLaneConfig, topics: Sequence[str]) -> Iterator[Finding]:
    for topic in topics:
        try:
            yield from _check_topic(seen, config, topic)
        except PenstockError as error:
            yield Finding.of_error("topic", error)


def _check_topic(seen: Topics, config: KafkaLaneConfig, topic: str) -> Iterator[Finding]:
    if not is_topic_name(topic):
        yield _problem("topic", f"{topic!r} is no name of a topic.", "Set `topic` or `prefix` otherwise.")
    elif seen.count(topic) is not None:
        yield from _check_rights(seen, topic, "topic", {AclOperation.WRITE})
    elif config.create_topics:
        seen.create_missing(topic, validate_only=True)
        yield Finding("topic", "ok", f"The topic {topic} does not exist yet; the lane creates it.")
    else:
        remedy = "Create it, or set `create_topics: true`."
        yield _problem("topic", f"The topic {topic} does not exist.", remedy)


def _check_rights(seen: Topics, topic: str, name: str, needed: set[AclOperation]) -> Iterator[Finding]:
    described = seen.admin.describe_topics(
        TopicCollection([topic]), include_authorized_operations=True, request_timeout=_ANSWER_S
    )
    allowed = set(_result(described[topic], f"asking for rights to {topic}").authorized_operations or ())
    missing = sorted(operation.name for operation in needed - allowed)
    if missing:
        remedy = f"Give this user {' and '.join(missing)} on {topic}."
        yield _problem(name, f"The user lacks {' and '.join(missing)} on the topic {topic}.", remedy)
    else:
        yield Finding(name, "ok", f"The topic {topic} can be written.")


def _check_transactions(config: KafkaLaneConfig, identity: str, patience: Patience) -> Iterator[Finding]:
    prefix = f"{identity}.kafka."
    producer = settings.make(Producer, settings.producer_settings(config, f"{prefix}check"), config)
    try:
        patience.ask("starting transactions", producer.init_transactions)
    except PenstockError as error:
        remedy = f"Give this user WRITE and DESCRIBE on transactional ids with the prefix `{prefix}`."
        yield _problem("transactions", error.message, remedy)
    else:
        yield Finding("transactions", "ok", f"Transactional ids with the prefix `{prefix}` are allowed.")


def _problem(name: str, message: str, remedy: str) -> Finding:
    return Finding(name, "error", message, remedy, exit_code=DestinationError.exit_code)


def _result(future: Future[_Answer], doing: str) -> _Answer:
    try:
        return future.result(_ANSWER_S)
    except KafkaException as error:
        raise target_error(doing, code_of(error)) from error
