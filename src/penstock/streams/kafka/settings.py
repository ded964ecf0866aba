"""librdkafka's configuration from ours.

What the promise stands on (transactions, acknowledgement by all replicas, one writer per transactional id) is
set last, so that nothing from `properties` replaces it; the pipeline file refuses those by name already. The
same connection settings serve the producer, the reader of positions and the administration.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, Producer

from penstock.config.streams import KafkaLaneConfig, KafkaOAuthConfig
from penstock.config.values import revealed
from penstock.core.errors import ConfigError

#: A record that is larger, with key and headers, is refused; the broker's own limit is about the same.
MESSAGE_BYTES = 1_000_000
BATCH_BYTES = 1_000_000
#: What librdkafka may hold of one producer: as much as a commit, so that encoding goes on meanwhile. Of
#: records of 300 bytes it takes nearly three times that, with their headers and its own notes.
_QUEUE_KIB = 16_384
_QUEUE_MESSAGES = 100_000
_CONNECT_MS = 10_000
#: A record that a broker has not taken after so long has failed, and its transaction with it.
MESSAGE_S = 60.0
_LOG_CRITICAL = 2
#: What fails is told by our errors, not by lines of librdkafka's own on stderr.
_SILENT = logging.getLogger("penstock.librdkafka")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False

_Client = TypeVar("_Client")


def client_settings(config: KafkaLaneConfig) -> dict[str, Any]:
    """How brokers are reached, for every kind of client. None makes a broker create what it only asks for."""
    security = config.security
    told = {
        "bootstrap.servers": config.bootstrap,
        "security.protocol": security.protocol,
        "sasl.mechanism": security.mechanism,
        "sasl.username": security.username,
        "sasl.password": security.password and security.password.get_secret_value(),
        "ssl.ca.location": security.ca and str(security.ca),
        "ssl.certificate.location": security.certificate and str(security.certificate),
        "ssl.key.location": security.key and str(security.key),
        "ssl.key.password": security.key_password and security.key_password.get_secret_value(),
        **_token_settings(security.oauth),
    }
    usual = {"client.id": "penstock", "socket.keepalive.enable": True}
    own = {"log_level": _LOG_CRITICAL, "logger": _SILENT, "allow.auto.create.topics": False}
    chosen = revealed(config.properties)
    return usual | chosen | own | {name: value for name, value in told.items() if value is not None}


def _token_settings(oauth: KafkaOAuthConfig | None) -> dict[str, str | None]:
    if oauth is None:
        return {}
    return {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": oauth.token_endpoint,
        "sasl.oauthbearer.client.id": oauth.client_id,
        "sasl.oauthbearer.client.secret": oauth.client_secret.get_secret_value(),
        "sasl.oauthbearer.scope": oauth.scope,
    }


def producer_settings(config: KafkaLaneConfig, transactional_id: str) -> dict[str, Any]:
    timeout_ms = int(config.transaction_timeout.total_seconds() * 1000)
    usual = {
        "message.max.bytes": MESSAGE_BYTES,
        "batch.size": BATCH_BYTES,
        "queue.buffering.max.kbytes": _QUEUE_KIB,
        "queue.buffering.max.messages": _QUEUE_MESSAGES,
        "socket.connection.setup.timeout.ms": _CONNECT_MS,
        "retry.backoff.ms": 20,
    }
    own = {
        "transactional.id": transactional_id,
        "transaction.timeout.ms": timeout_ms,
        "message.timeout.ms": min(timeout_ms, int(MESSAGE_S * 1000)),
        "enable.idempotence": True,
        "delivery.report.only.error": True,
        "acks": "all",
        "linger.ms": config.linger.total_seconds() * 1000,
        "compression.type": config.compression,
    }
    return usual | client_settings(config) | own


def reader_settings(config: KafkaLaneConfig, identity: str) -> dict[str, Any]:
    """Of a consumer that is in no group: it reads one partition from its beginning to its end."""
    own = {
        "group.id": f"{identity}.penstock",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 10,  # the broker holds back so long that nothing more is there
    }
    return client_settings(config) | own


def make(
    client: Callable[[dict[str, Any]], _Client], settings: dict[str, Any], config: KafkaLaneConfig
) -> _Client:
    """A client; a `ConfigError` that names the property if librdkafka does not take one."""
    try:
        return client(settings)
    except (KafkaException, TypeError, ValueError) as error:
        raise ConfigError(_why_not(error, config), remedy="Correct `lanes.kafka` in the file.") from error


def _why_not(error: Exception, config: KafkaLaneConfig) -> str:
    for name, value in revealed(config.properties).items():
        try:
            Producer({name: value, "log_level": _LOG_CRITICAL, "logger": _SILENT})
        except (KafkaException, TypeError, ValueError):
            return f"librdkafka has no property `{name}`, or does not take its value."
    told = error.args[0] if isinstance(error, KafkaException) else None
    name = told.name() if isinstance(told, KafkaError) else type(error).__name__
    return f"librdkafka does not take the lane's settings ({name})."
