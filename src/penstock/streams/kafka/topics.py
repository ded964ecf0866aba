"""Topics: created if that is asked for, and how many partitions each has, which is not to change unseen.

The number is noted when a topic is first written to, in the positions topic, and keys are assigned by what is
noted. So a topic that has got more partitions keeps each key where it is, until somebody says `accept`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

import structlog
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata, ConfigResource, NewTopic, ResourceType

from penstock.config.streams import KafkaLaneConfig
from penstock.core.errors import ConfigError, DestinationError, TargetError
from penstock.streams.kafka import settings
from penstock.streams.kafka.errors import code_of, target_error
from penstock.streams.kafka.patience import Patience

_NAME = re.compile(r"\A(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}\Z")
_LOOK_AGAIN_S = 60.0
_ANSWER_S = 30.0
_PIECE_S = 1.0
_BROKERS_OWN = -1  # as a replication factor

_logger = structlog.get_logger("penstock")


def is_topic_name(name: str) -> bool:
    return _NAME.match(name) is not None


class Topics:
    """`noted` are numbers of partitions, by topic; `news` those that the positions topic does not say yet."""

    def __init__(self, config: KafkaLaneConfig, patience: Patience) -> None:
        self.noted: dict[str, int] = {}
        self.news: dict[str, int] = {}
        wanted = settings.client_settings(config) | {"error_cb": patience.hear}
        self.admin = settings.make(AdminClient, wanted, config)
        self._config = config
        self._patience = patience
        self._seen: set[str] = set()
        self._look_again = 0.0

    def begin(self, noted: Mapping[str, int]) -> None:
        self.noted, self.news = dict(noted), {}
        self.forget()

    def forget(self) -> None:
        """Look at every topic again before it is written to."""
        self._seen = set()

    def partitions(self, topic: str) -> int:
        """Of a topic that is there: created, if it was not."""
        if topic not in self._seen:
            self._see(topic, self.count(topic) or self.create_missing(topic))
        return self.noted[topic]

    def look_again(self) -> None:
        """Now and then: whether topics have got other numbers of partitions in the meantime."""
        if not self._seen or time.monotonic() < self._look_again:
            return
        self._look_again = time.monotonic() + _LOOK_AGAIN_S
        found = self.cluster().topics
        for topic in self._seen:
            if topic in found and found[topic].error is None:
                self._see(topic, len(found[topic].partitions))

    def ensure_positions(self, topic: str, config: Mapping[str, str]) -> None:
        if self.count(topic) is None:
            self.create(topic, 1, config)
        else:
            self.refuse_deletion(topic)

    def refuse_deletion(self, topic: str) -> None:
        """What is deleted by age would make the lane begin anew."""
        if "delete" in (self.cleanup_policy(topic) or ""):
            raise ConfigError(
                f"The topic {topic} is not compacted: Kafka would delete the lane's position.",
                remedy=f"Set cleanup.policy=compact for {topic}.",
            )

    def cleanup_policy(self, topic: str) -> str | None:
        """What Kafka does with old records; None: without the right to ask it cannot be known."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        try:
            told = self.admin.describe_configs([resource])[resource].result(_ANSWER_S)
        except KafkaException:
            return None
        return str(told["cleanup.policy"].value)

    def cluster(self) -> ClusterMetadata:
        return self._ask("asking for the brokers", None)

    def count(self, topic: str) -> int | None:
        """Partitions it has; None if it is not there."""
        doing = f"asking for the topic {topic}"
        known = self._ask(doing, topic).topics[topic]
        if known.error is None:
            return len(known.partitions)
        if code_of(known.error) in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"):
            return None
        raise target_error(doing, code_of(known.error))

    def create_missing(self, topic: str, *, validate_only: bool = False) -> int:
        """Created, if that is asked for; its partitions."""
        config = self._config
        if not config.create_topics:
            raise TargetError(
                f"The topic {topic} does not exist.",
                remedy="Create it, or set `create_topics: true`; the lane goes on by itself then.",
            )
        chosen = {name: str(value) for name, value in config.topic_config.items()}
        self.create(topic, config.partitions, chosen, validate_only=validate_only)
        return config.partitions

    def create(
        self, topic: str, partitions: int, config: Mapping[str, str], *, validate_only: bool = False
    ) -> None:
        factor = self._config.replication_factor or _BROKERS_OWN
        wanted = NewTopic(topic, partitions, factor, config=dict(config))
        try:
            self.admin.create_topics([wanted], validate_only=validate_only)[topic].result(_ANSWER_S * 3)
        except KafkaException as error:
            if code_of(error) != "TOPIC_ALREADY_EXISTS":
                raise target_error(f"creating the topic {topic}", code_of(error)) from error
        if not validate_only:
            self._await(topic, partitions)

    def _await(self, topic: str, partitions: int) -> None:
        deadline = time.monotonic() + _ANSWER_S
        while self.count(topic) != partitions:
            if time.monotonic() > deadline:
                raise target_error(f"waiting for the topic {topic}", "_TIMED_OUT")
            self._patience.pause(0.02)

    def _ask(self, doing: str, topic: str | None) -> ClusterMetadata:
        def ask(_: float) -> ClusterMetadata:
            self.admin.poll(0)
            found = (
                self.admin.list_topics(topic, _PIECE_S) if topic else self.admin.list_topics(timeout=_PIECE_S)
            )
            assert isinstance(found, ClusterMetadata)
            return found

        return self._patience.ask(doing, ask, is_retried=True)

    def _see(self, topic: str, count: int) -> None:
        noted = self.noted.get(topic)
        if noted is not None and noted != count:
            self._changed(topic, noted, count)
        if noted != count:
            self.noted[topic] = self.news[topic] = count
        self._seen.add(topic)

    def _changed(self, topic: str, noted: int, count: int) -> None:
        if self._config.on_partition_change == "stop":
            raise DestinationError(
                f"The topic {topic} has {count} partitions now, and had {noted} before.",
                detail="Keys would go to other partitions, without order between old events and new ones.",
                remedy="Set `on_partition_change: accept` once consumers have read what is there.",
            )
        _logger.warning("partition count changed", topic=topic, partitions=count, partitions_before=noted)
