"""A real Kafka broker (KRaft, one node), and what tests ask of it: topics, and what a consumer reads.

Its jars come from Maven by name, pinned, once per machine, by the Ivy that Spark brings along. A broker keeps
its data below `directory` and its ports over restarts, so clients find it again as they would a real one.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyspark
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from penstock.lake.iceberg_session import ivy_directory
from penstock.lake.java import ensure_java
from tests.certificates import write_certificates
from tests.conftest import wait_until
from tests.ports import free_port

_PACKAGES = {"kafka": "org.apache.kafka:kafka_2.13:4.3.1", "slf4j": "org.slf4j:slf4j-nop:1.7.36"}
_HOST = "127.0.0.1"
_SPARK_JARS = Path(pyspark.__file__).parent / "jars"
_QUICK_START = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_CLUSTER_ID = "cGVuc3RvY2stdGVzdHMtMQ"
USER, PASSWORD = "penstock", "sesame-open"
STRANGER = "stranger"  # may log in with the same password, and do nothing


@dataclass(frozen=True, slots=True)
class Record:
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes | None]


class KafkaServer(AbstractContextManager["KafkaServer"]):
    """Started by `with`, answering by then. `secured` adds a listener that wants TLS and a password.

    The listener at the port `behind` tells clients to come to `proxied`, where a test may set up a proxy.
    """

    def __init__(
        self, directory: Path, *, secured: bool = False, java_options: Sequence[str] = _QUICK_START
    ) -> None:
        self.directory = directory
        self._is_secured = secured
        self._java_options = java_options
        self._port, self._controller_port, self._secured_port = free_port(), free_port(), free_port()
        self.behind, self.proxied = free_port(), free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"{_HOST}:{self._port}"

    @property
    def secured_bootstrap(self) -> str:
        assert self._is_secured
        return f"localhost:{self._secured_port}"

    @property
    def authority(self) -> Path:
        """The certificate that the secured listener's is signed with."""
        return self.directory / "authority.pem"

    def __enter__(self) -> KafkaServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        assert self._process is None
        if not self._properties.exists():
            self.directory.mkdir(parents=True, exist_ok=True)
            if self._is_secured:
                write_certificates(self.directory)
            self._write_properties()
            self._format()
        with open(self.directory / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                [*_java(self._java_options), "kafka.Kafka", str(self._properties)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait_until(self._answers, "the Kafka broker to answer", timeout_s=90)

    def stop(self) -> None:
        """Orderly: what clients wait for is answered, and they are told."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait()
        self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """It takes connections and answers nothing, until `resume`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def create_topic(self, topic: str, partitions: int = 1, **config: str) -> None:
        created = self._admin.create_topics([NewTopic(topic, partitions, 1, config=config)])
        created[topic].result(120)

    def grow_topic(self, topic: str, partitions: int) -> None:
        self._admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(120)

    def configure_topic(self, topic: str, config: Mapping[str, str]) -> None:
        changes = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changes)
        self._admin.incremental_alter_configs([resource])[resource].result(120)

    def topics(self) -> dict[str, int]:
        """Each topic's number of partitions."""
        found = self._admin.list_topics(timeout=120).topics
        return {name: len(topic.partitions) for name, topic in found.items()}

    def topic_config(self, topic: str) -> dict[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        told = self._admin.describe_configs([resource])[resource].result(120)
        return {name: str(each.value) for name, each in told.items()}

    def read(self, topic: str, *, committed: bool = True) -> list[Record]:
        """Everything of a topic, partition by partition, as a `read_committed` consumer gets it."""
        return list(self._read(topic, committed))

    def _read(self, topic: str, committed: bool) -> Iterator[Record]:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "log_level": 0,
                "group.id": "tests",
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,
                "auto.offset.reset": "earliest",
                "allow.auto.create.topics": False,
            }
        )
        try:
            known = consumer.list_topics(topic, timeout=120).topics[topic]
            if known.error is not None:
                raise KafkaException(known.error)
            for partition in known.partitions:
                yield from _read_partition(consumer, TopicPartition(topic, partition, 0))
        finally:
            consumer.close()

    @cached_property
    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    @property
    def _properties(self) -> Path:
        return self.directory / "server.properties"

    def _write_properties(self) -> None:
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{_HOST}:{self._controller_port}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "DIRECT",
            "listeners": f"DIRECT://{self.bootstrap},PROXIED://{_HOST}:{self.behind},"
            f"CONTROLLER://{_HOST}:{self._controller_port}",
            "advertised.listeners": f"DIRECT://{self.bootstrap},PROXIED://{_HOST}:{self.proxied}",
            "listener.security.protocol.map": "DIRECT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT,"
            "SECURED:SASL_SSL",
            "log.dirs": self.directory / "data",
            "auto.create.topics.enable": "true",  # the default: whoever only asks for a topic may create it
            "offsets.topic.num.partitions": 1,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "controlled.shutdown.max.retries": 1,
            # So short only here: a test does not wait a minute for a session to be given up.
            "broker.session.timeout.ms": 6000,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:ANONYMOUS;User:{USER}",
        }
        if self._is_secured:
            users = f'user_{USER}="{PASSWORD}" user_{STRANGER}="{PASSWORD}"'
            module = "org.apache.kafka.common.security.plain.PlainLoginModule"
            address = f"SECURED://{self.secured_bootstrap}"
            settings |= {
                "listeners": f"{settings['listeners']},{address}",
                "advertised.listeners": f"{settings['advertised.listeners']},{address}",
                "listener.name.secured.sasl.enabled.mechanisms": "PLAIN",
                "listener.name.secured.plain.sasl.jaas.config": f"{module} required {users};",
                "listener.name.secured.ssl.keystore.type": "PEM",
                "listener.name.secured.ssl.keystore.location": self.directory / "server.pem",
            }
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def _format(self) -> None:
        format_data = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(self._properties)]
        done = subprocess.run(
            [*_java(_QUICK_START), *format_data], check=False, capture_output=True, timeout=120
        )
        assert done.returncode == 0, (done.stdout + done.stderr).decode()

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.directory / "server.log").read_text()
        try:
            return bool(self._admin.list_topics(timeout=2).brokers)
        except KafkaException:
            return False


def _read_partition(consumer: Any, partition: TopicPartition) -> Iterator[Record]:
    consumer.assign([partition])
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for message in consumer.consume(1_000, timeout=0.02):
            error = message.error()
            if error is None:
                headers = dict(message.headers() or ())
                yield Record(message.partition(), message.offset(), message.key(), message.value(), headers)
            elif error.code() == error._PARTITION_EOF:
                return
            else:
                raise KafkaException(error)
    raise AssertionError(f"{partition.topic} has not ended: a transaction is open")


def _java(options: Sequence[str]) -> list[str]:
    ensure_java()
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java") or "java"
    return [java, *options, "-cp", f"{_jars()}/*"]


def _jars() -> Path:
    version = _PACKAGES["kafka"].rpartition(":")[2]
    directory = ivy_directory()
    directory.mkdir(parents=True, exist_ok=True)
    jars = directory / f"kafka-{version}"
    with open(directory / "lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as Spark's start takes it for the jars of a session
        if not (jars / "complete").exists():
            for package in _PACKAGES.values():
                _download(package, jars, directory / "cache")
            (jars / "complete").touch()
    return jars


def _download(package: str, jars: Path, cache: Path) -> None:
    [ivy] = _SPARK_JARS.glob("ivy-*.jar")
    ensure_java()
    subprocess.run(
        [
            *(shutil.which("java") or "java", "-cp", str(ivy), "org.apache.ivy.Main", "-cache", str(cache)),
            *("-dependency", *package.split(":"), "-confs", "default"),
            *("-retrieve", str(jars / "[artifact]-[revision].[ext]")),
        ],
        check=True,
        capture_output=True,
        timeout=600,
    )
