"""How many calls may be under way for a shard, and what Kinesis' errors mean."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.streams.error_classes import ErrorClass
from penstock.streams.kinesis.errors import NOT_SENT, TOO_LARGE, WRONG_SHARD, classify, reason_of
from penstock.streams.kinesis.shard_room import ShardRoom
from penstock.streams.publisher import StoppedError


def test_no_shard_has_more_calls_than_it_may() -> None:
    room, lock = ShardRoom(2), threading.Lock()
    under_way = {"a": 0, "b": 0}
    most = dict(under_way)

    def call(shards: list[str]) -> None:
        with room.taken(shards):
            for step in (1, -1):
                with lock:
                    for shard in shards:
                        under_way[shard] += step
                        most[shard] = max(most[shard], under_way[shard])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(call, [["a"], ["b"], ["a", "b"], []] * 200))
    assert max(most.values()) <= 2
    assert under_way == {"a": 0, "b": 0}


def test_a_shard_that_is_full_does_not_hold_up_others() -> None:
    room = ShardRoom(1)
    with room.taken(["a"]), room.taken(["b"]):
        waiting = threading.Thread(target=lambda: _stopped(room, ["b", "a"]))
        waiting.start()
        room.stop()
        waiting.join(120)
        assert not waiting.is_alive()


def _stopped(room: ShardRoom, shards: list[str]) -> None:
    with pytest.raises(StoppedError), room.taken(shards):
        pass


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        (TOO_LARGE, ErrorClass.POISON),
        ("ValidationException", ErrorClass.POISON),
        ("InvalidArgumentException", ErrorClass.POISON),
        ("ProvisionedThroughputExceededException", ErrorClass.TARGET),
        ("KMSThrottlingException", ErrorClass.TARGET),
        ("AccessDeniedException", ErrorClass.TARGET),
        ("ResourceNotFoundException", ErrorClass.TARGET),
        ("ExpiredTokenException", ErrorClass.TARGET),
        ("InternalFailure", ErrorClass.RECORD),
        ("NeverHeardOf", ErrorClass.RECORD),
        (NOT_SENT, ErrorClass.TARGET),
        (WRONG_SHARD, ErrorClass.TARGET),
    ],
)
def test_a_code_says_whether_the_record_or_the_stream_is_meant(code: str, meaning: ErrorClass) -> None:
    assert classify(code) is meaning


def test_a_reason_is_what_the_service_says_but_for_values_that_it_quotes() -> None:
    assert (
        reason_of("InternalFailure", "Internal service failure.")
        == "InternalFailure: Internal service failure."
    )
    assert len(reason_of("InternalFailure", "x" * 10_000)) < 400
    quoting = "1 validation error detected: Value 'secret' at 'records.1.member.partitionKey' failed"
    assert "secret" not in reason_of("ValidationException", quoting)
