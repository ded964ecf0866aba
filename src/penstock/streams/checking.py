"""`penstock check` for stream lanes: are the target and what the lane needs there?"""

from __future__ import annotations

import errno
import os

from penstock.config import Config
from penstock.config.streams import FileLaneConfig, KafkaLaneConfig, KinesisLaneConfig
from penstock.core.errors import ConfigError, SourceError
from penstock.sources.finding import Finding
from penstock.streams.followed import followed_streams
from penstock.streams.libraries import require_library
from penstock.streams.routing import Router
from penstock.streams.settings import StreamSettings


def check_lanes(pipeline: Config) -> list[Finding]:
    """What is wrong with each lane's target, and what is right."""
    return [
        finding
        for lane in pipeline.lanes.streams
        for finding in _check(StreamSettings.of_pipeline(pipeline, lane))
    ]


def _check(settings: StreamSettings) -> list[Finding]:
    name = f"lane {settings.lane}"
    try:
        require_library(settings.lane)
        router, streams = Router(settings.routes), followed_streams(settings)
        topics = [router.route(stream) for stream in streams if not router.sends_messages(stream)]
        found = Finding(name, "ok", f"The lane {settings.lane} has {len(streams)} streams.")
        return [found, *_check_target(settings, topics)]
    except ConfigError as error:
        return [Finding.of_error(name, error)]
    except SourceError:
        return []  # what is wrong at the source is said of the source


def _check_target(settings: StreamSettings, topics: list[str]) -> list[Finding]:
    section = settings.section
    if isinstance(section, KafkaLaneConfig):
        from penstock.streams.kafka.check import check as check_kafka

        return check_kafka(section, settings.identity, topics)
    if isinstance(section, KinesisLaneConfig):
        from penstock.streams.kinesis.check import check as check_kinesis

        return check_kinesis(section)
    assert isinstance(section, FileLaneConfig)
    return [_check_file(section)]


def _check_file(section: FileLaneConfig) -> Finding:
    place = next(each for each in (section.path, *section.path.parents) if each.exists())
    try:
        if place == section.path:
            with open(place, "rb+"):
                pass
        elif not place.is_dir() or not os.access(place, os.W_OK):
            raise PermissionError(errno.EACCES, f"nothing can be made in {place}")
    except OSError as error:
        return Finding(
            "lane file",
            "error",
            f"The file {section.path} cannot be written: {error.strerror}.",
            "Let Penstock write there, or give another `lanes.file.path`.",
        )
    return Finding("lane file", "ok", f"Events go to {section.path}.")
