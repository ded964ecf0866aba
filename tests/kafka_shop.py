"""A pipeline with a Kafka lane and its capture, and copies of its topics in which something is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock.config.streams import KafkaLaneConfig
from penstock.core.position import Lsn
from penstock.core.verify_report import VerifiedStream, VerifyReport
from penstock.pipeline import Pipeline
from penstock.streams.kafka import positions
from penstock.streams.kafka.patience import Patience
from penstock.streams.settings import StreamSettings
from tests.always import AlwaysOn
from tests.conftest import WAIT_S, Database, wait_until
from tests.kafka_server import KafkaServer, Record
from tests.stream_lane import CapturedLane, pipeline_file, stream_capture


class KafkaShop(CapturedLane):
    """`capture` is there while `captured` is."""

    def __init__(self, directory: Path, database: Database, kafka: KafkaServer, **section: Any) -> None:
        self.database = database
        self.kafka = kafka
        target = {"bootstrap": kafka.bootstrap, "partitions": 3, **section}
        super().__init__(pipeline_file(directory, database, "kafka", target))
        self._copies = 0

    def captured(self, **changed: Any) -> AbstractContextManager[AlwaysOn]:
        return self.captured_by(stream_capture(self.config, self.database, **changed))

    def topic(self, table: str = "orders") -> str:
        return f"slot_{self.database.name}.public.{table}"

    def level(self) -> Lsn:
        """Until all that is committed now is in the log, sealed, and at the target."""
        assert self.capture is not None
        asked = self.capture.capture
        asked.epoch = asked.hello().epoch
        asked.read_to(asked.note_target())
        end = asked.reached(WAIT_S)
        assert end is not None
        wait_until(lambda: self.position() >= end, f"the target to hold everything up to {end}", WAIT_S)
        return end

    def position(self) -> Lsn:
        section = self.config.lanes.streams["kafka"]
        assert isinstance(section, KafkaLaneConfig)
        identity = StreamSettings.of_pipeline(self.config, "kafka").identity
        if positions.topic_name(identity) not in self.kafka.topics():
            return Lsn(0)
        standing = positions.read(section, identity, Patience()).standing()
        return Lsn(0) if standing is None else standing.position

    def verify(self, *streams: str, **asked: Any) -> VerifyReport:
        return Pipeline(self.config).verify_lane("kafka", streams, **asked)

    def verify_orders(self, **asked: Any) -> VerifiedStream:
        [told] = self.verify("public.orders", **asked).streams
        return told

    def delete_records(self, before: int) -> None:
        """Of each partition of the orders, as retention does."""
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        cut = [TopicPartition(self.topic(), number, before) for number in range(3)]
        for done in admin.delete_records(cut).values():
            done.result(WAIT_S)

    def verify_copy(self, records: Sequence[Record], **asked: Any) -> VerifiedStream:
        """What is said of a topic with these records, in their order in each partition."""
        self._copies += 1
        prefix = f"copy{self._copies}."
        self.kafka.create_topic(prefix + self.topic(), 3)
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap, "log_level": 0})
        for each in records:
            producer.produce(
                prefix + self.topic(),
                each.value,
                each.key,
                each.partition,
                headers=list(each.headers.items()),
            )
        assert producer.flush(WAIT_S) == 0
        document = yaml.safe_load(self.path.read_text())
        document["lanes"]["kafka"]["topic"] = prefix + "{prefix}.{schema}.{table}"
        document["state"] = str(self.config.state)
        other = self.path.with_name(f"{prefix}yaml")
        other.write_text(yaml.safe_dump(document))
        [told] = Pipeline.from_yaml(other).verify_lane("kafka", ["public.orders"], **asked).streams
        return told
