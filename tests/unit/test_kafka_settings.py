"""librdkafka's configuration, keys' partitions, and columns as Python's bytes: pure functions."""

from __future__ import annotations

import traceback
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.streams import KafkaLaneConfig
from penstock.core.errors import ConfigError
from penstock.streams.error_classes import ErrorClass
from penstock.streams.kafka import settings
from penstock.streams.kafka.errors import TABLE, target_error
from penstock.streams.kafka.partitions import partitions_of
from penstock.streams.kafka.producer import texts
from penstock.streams.kafka.topics import is_topic_name

pytestmark = pytest.mark.unit


def config(**settings: Any) -> KafkaLaneConfig:
    return KafkaLaneConfig.model_validate({"bootstrap": "localhost:9092", **settings})


def test_what_the_promise_stands_on_is_always_set() -> None:
    told = settings.producer_settings(config(properties={"queue.buffering.max.kbytes": 1000}), "lane.kafka.0")
    assert told["transactional.id"] == "lane.kafka.0"
    assert (told["enable.idempotence"], told["acks"]) == (True, "all")
    assert told["queue.buffering.max.kbytes"] == "1000"
    reader = settings.reader_settings(config(), "lane")
    assert (reader["isolation.level"], reader["enable.auto.commit"]) == ("read_committed", False)


@pytest.mark.parametrize(
    "name",
    [
        "acks", "enable.idempotence", "transactional.id", "max.in.flight", "partitioner", "isolation.level",
        "transaction.timeout.ms", "message.timeout.ms", "delivery.timeout.ms", "queuing.strategy",
        "delivery.report.only.error", "enable.gapless.guarantee", "security.protocol", "sasl.password",
        "linger.ms", "compression.type", "plugin.library.paths", "error_cb",
    ],
)  # fmt: skip
def test_a_property_that_would_break_the_promise_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        config(properties={name: "1"})


def test_tls_and_sasl() -> None:
    security = {
        "protocol": "sasl_ssl",
        "mechanism": "SCRAM-SHA-512",
        "username": "u",
        "password": "p",
        "ca": "/ca.pem",
        "certificate": "/c.pem",
        "key": "/k.pem",
        "key_password": "kp",
    }
    told = settings.client_settings(config(security=security))
    assert {name: told[name] for name in told if name.startswith(("sasl", "ssl", "security"))} == {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "u",
        "sasl.password": "p",
        "ssl.ca.location": "/ca.pem",
        "ssl.certificate.location": "/c.pem",
        "ssl.key.location": "/k.pem",
        "ssl.key.password": "kp",
    }


def test_tokens() -> None:
    oauth = {"token_endpoint": "https://t/o", "client_id": "i", "client_secret": "hidden", "scope": "s"}
    lane = config(security={"protocol": "sasl_ssl", "mechanism": "OAUTHBEARER", "oauth": oauth})
    assert "hidden" not in repr(lane)
    told = settings.client_settings(lane)
    assert {name: told[name] for name in told if name.startswith("sasl")} == {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": "https://t/o",
        "sasl.oauthbearer.client.id": "i",
        "sasl.oauthbearer.client.secret": "hidden",
        "sasl.oauthbearer.scope": "s",
    }
    settings.make(AdminClient, told, lane).poll(0)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [("ssl.keystoer.password", "`ssl.keystoer.password`"), ("ssl.key.pem", "the lane's settings")],
)
def test_no_error_shows_the_value_of_a_property_that_is_not_taken(wrong: str, said: str) -> None:
    properties = {"socket.timeout.ms": 9000, wrong: "hunter2"}
    lane = config(security={"protocol": "ssl"}, properties=properties)
    with pytest.raises(ConfigError) as caught:
        settings.make(AdminClient, settings.client_settings(lane), lane)
    assert said in str(caught.value)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_only_what_a_broker_says_of_a_record_is_the_records() -> None:
    assert TABLE.classify("MSG_SIZE_TOO_LARGE") is ErrorClass.POISON
    for code in ("TOPIC_AUTHORIZATION_FAILED", "UNKNOWN_TOPIC_OR_PART", "_TRANSPORT", "NEVER_HEARD_OF"):
        assert TABLE.classify(code) is ErrorClass.TARGET
    assert "security" in target_error("x", "_AUTHENTICATION").remedy


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_keys_are_hashed_as_javas_client_does(key: bytes, hashed: int) -> None:
    keys = pa.array([b"before", key, None], pa.binary())[1:]
    assert partitions_of(keys, 2**31 - 1).tolist() == [(hashed & 0x7FFFFFFF) % (2**31 - 1), -1]


@given(st.lists(st.binary(max_size=9) | st.none(), max_size=20), st.integers(0, 20), st.integers(0, 20))
def test_a_column_becomes_the_bytes_it_holds(values: list[bytes | None], start: int, length: int) -> None:
    column = pa.array(values, pa.binary()).slice(start, length)
    assert texts(column) == column.to_pylist()


@given(st.lists(st.binary(max_size=9) | st.none(), min_size=1, max_size=20), st.integers(1, 9))
def test_a_key_has_the_same_partition_wherever_it_stands(values: list[bytes | None], count: int) -> None:
    places = partitions_of(pa.array(values, pa.binary()), count)
    alone = [partitions_of(pa.array([value], pa.binary()), count)[0] for value in values]
    assert places.tolist() == alone
    assert np.array_equal(places == -1, [value is None for value in values])
    assert places.max() < count


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("shop.public.t_1-x", True), ("", False), (".", False), ("..", False), ("a b", False), ("ä", False),
     ("x" * 249, True), ("x" * 250, False)],
)  # fmt: skip
def test_names_of_topics(name: str, is_one: bool) -> None:
    assert is_topic_name(name) is is_one
