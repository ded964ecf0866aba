"""`python -m bench.streams_consumer BOOTSTRAP TOPIC COUNT`: when records arrive, as any consumer sees it.

It says "ready" once it waits at the topic's end; then, of the next COUNT records in their order, the
milliseconds from `reference` in the row, when it was sent, until the record was in its hands.
"""

from __future__ import annotations

import json
import sys
import time

from confluent_kafka import OFFSET_END, Consumer, TopicPartition


def main() -> None:
    bootstrap, topic, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 100,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
    latencies: list[float] = []
    while len(latencies) < count:
        message = consumer.poll(30)
        now = time.time_ns()
        assert message is not None, "nothing comes"
        if (error := message.error()) is not None:
            assert error.code() == error._PARTITION_EOF, error
            if not latencies:
                print("ready", flush=True)
            continue
        row = json.loads(message.value() or b"")["after"]
        latencies.append((now - int(row["reference"])) / 1e6)
    print(json.dumps(latencies), flush=True)
    consumer.close()


if __name__ == "__main__":
    main()
