"""What Kafka's errors mean, by their names.

Only what a broker says of a record itself is the record's; it will say the same the next time. Everything
else holds the position. That another producer has taken over the transactional id is not here: whether it is
a later term is read from the positions topic.
"""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from penstock.core.errors import TargetError
from penstock.streams.error_classes import ErrorClass, ErrorTable

TOO_LARGE, NO_TOPIC = "MSG_SIZE_TOO_LARGE", "TOPIC_EXCEPTION"
TABLE = ErrorTable(
    {
        TOO_LARGE: ErrorClass.POISON,
        "INVALID_MSG_SIZE": ErrorClass.POISON,
        "INVALID_RECORD": ErrorClass.POISON,
        "INVALID_MSG": ErrorClass.POISON,
        "INVALID_TIMESTAMP": ErrorClass.POISON,
    },
    otherwise=ErrorClass.TARGET,
)
FENCED = frozenset({"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "TRANSACTION_COORDINATOR_FENCED"})
_REASONS = {
    TOO_LARGE: "the record is larger than the topic or the producer takes",
    NO_TOPIC: "its route is no name of a topic",
    "INVALID_MSG_SIZE": "the record is larger than the broker takes",
    "INVALID_RECORD": "the topic does not take such a record (a compacted topic needs keys)",
    "INVALID_MSG": "the broker could not read the record",
    "INVALID_TIMESTAMP": "the topic does not take the record's time",
}
_SECURITY = "Check `lanes.kafka.security`, and what the broker allows this user."
_RIGHTS = (
    "Give this user DESCRIBE and WRITE on the lane's topics, READ as well on its positions topic, "
    "DESCRIBE and WRITE on its transactional ids, and CREATE if it is to create topics. Reading topics back "
    "(`penstock verify --lane`) needs READ on them."
)
_REMEDIES = {
    "_AUTHENTICATION": _SECURITY,
    "SASL_AUTHENTICATION_FAILED": _SECURITY,
    "_SSL": _SECURITY,
    "TOPIC_AUTHORIZATION_FAILED": _RIGHTS,
    "CLUSTER_AUTHORIZATION_FAILED": _RIGHTS,
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": _RIGHTS,
    "GROUP_AUTHORIZATION_FAILED": _RIGHTS,
    "INVALID_TRANSACTION_TIMEOUT": "Set `transaction_timeout` to at most what the broker allows.",
    "INVALID_REPLICATION_FACTOR": "Set `replication_factor` to at most the number of brokers.",
}
_AWAY = "Check that the brokers of `bootstrap`, and those they advertise, can be reached from here."


def code_of(error: KafkaException | KafkaError) -> str:
    told = error.args[0] if isinstance(error, KafkaException) else error
    return str(told.name()) if isinstance(told, KafkaError) else "UNKNOWN"


def is_of_record(code: str) -> bool:
    return TABLE.classify(code) is ErrorClass.POISON


def reason_of(code: str) -> str:
    return _REASONS.get(code, "the broker refuses the record")


def target_error(doing: str, code: str) -> TargetError:
    """Never with librdkafka's own words: they may quote what they are about."""
    return TargetError(f"Kafka: {doing} failed ({code}).", remedy=_REMEDIES.get(code, _AWAY))
