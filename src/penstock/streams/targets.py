"""Which target a lane has: the one place where targets are named.

What a target's client library needs is imported when the lane is there: each is an extra of its own.
"""

from __future__ import annotations

from contextlib import ExitStack

from penstock.config.streams import FileLaneConfig, KafkaLaneConfig, KinesisLaneConfig
from penstock.streams.commit_publisher import CommitLimits, CommitPublisher
from penstock.streams.dead_letters import DeadLetterPolicy, DeadLetters, dead_letters_path
from penstock.streams.file import FileTarget
from penstock.streams.inflight import QueueLimits
from penstock.streams.publisher import Publisher
from penstock.streams.retry import RetryPolicy
from penstock.streams.settings import StreamSettings
from penstock.streams.trouble import TroubleMet


def publisher_of(settings: StreamSettings, opened: ExitStack) -> Publisher:
    """The lane's publisher, not yet open; `opened` closes it, and what it needs."""
    section = settings.section
    chosen = section.dead_letter
    letters = DeadLetters(
        dead_letters_path(settings.pipeline.state, settings.lane),
        settings.lane,
        DeadLetterPolicy(chosen.order, chosen.max_share, chosen.max_count, int(chosen.max_bytes)),
        settings.key_form,
    )
    opened.callback(letters.close)
    queue = QueueLimits(section.queue.count, int(section.queue.bytes))
    publisher: Publisher
    if isinstance(section, FileLaneConfig):
        publisher = CommitPublisher(FileTarget(section.path), letters, queue=queue)
    elif isinstance(section, KafkaLaneConfig):
        publisher = _kafka(section, settings.lane, letters, queue)
    else:
        assert isinstance(section, KinesisLaneConfig)
        publisher = _kinesis(section, settings, letters, queue)
    opened.callback(publisher.close)
    return publisher


def _kafka(section: KafkaLaneConfig, lane: str, letters: DeadLetters, queue: QueueLimits) -> Publisher:
    from penstock.streams.kafka.target import KafkaTarget

    commit, trouble = CommitLimits(queue.count, int(section.commit_bytes)), TroubleMet()
    target = KafkaTarget(section, lane, trouble)
    return CommitPublisher(target, letters, queue=queue, commit=commit, trouble=trouble)


def _kinesis(
    section: KinesisLaneConfig, settings: StreamSettings, letters: DeadLetters, queue: QueueLimits
) -> Publisher:
    from penstock.streams.kinesis.errors import classify
    from penstock.streams.kinesis.settings import KinesisSettings
    from penstock.streams.kinesis.target import KinesisTarget
    from penstock.streams.record_publisher import RecordPublisher

    target = KinesisTarget(KinesisSettings.of(section), settings.directory)
    return RecordPublisher(
        target,
        letters,
        classify,
        RetryPolicy(section.retry_max_attempts),
        queue,
        note_every_s=section.checkpoint_every.total_seconds(),
        linger_s=section.linger.total_seconds(),
    )
