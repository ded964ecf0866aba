"""The failure proxy in front of a real broker: clients stay with it, and what is lost was carried out."""

from __future__ import annotations

import secrets

from confluent_kafka import Producer

from tests.failure_plan import Fault, Plan
from tests.failure_proxy import FailureProxy
from tests.kafka_server import KafkaServer


def test_a_commit_whose_answer_is_lost_is_there_once(kafka: KafkaServer) -> None:
    topic = f"proxied_{secrets.token_hex(4)}"
    kafka.create_topic(topic)
    plan = Plan(exactly={("EndTxn", 2): Fault("lost"), ("Produce", 2): Fault("lost")})
    with FailureProxy(kafka.behind, plan, kafka.proxied) as proxy:
        producer = Producer({"bootstrap.servers": proxy.address, "transactional.id": topic})
        producer.init_transactions(30)
        for number in range(3):
            producer.begin_transaction()
            producer.produce(topic, value=b"%d" % number)
            producer.commit_transaction(30)
        assert plan.seen("Produce") >= 4, "the client sends to the proxy, not around it"
    assert [(struck.operation, struck.ordinal) for struck in plan.struck] == [("Produce", 2), ("EndTxn", 2)]
    assert [record.value for record in kafka.read(topic)] == [b"0", b"1", b"2"]
