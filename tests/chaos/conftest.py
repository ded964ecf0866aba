"""Servers that chains of crashes share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.sources.postgres.embedded import EmbeddedPostgres
from tests.chaos.stream_chain import Source, writing
from tests.kinesis_server import Kinesalite


@pytest.fixture(scope="session", autouse=True)
def fast_syncs(captures_are_forked: None) -> None:
    """Each link of a chain syncs in this process once or more."""


@pytest.fixture(scope="session")
def kinesis() -> Iterator[Kinesalite]:
    with Kinesalite() as running:
        yield running


@pytest.fixture(scope="module")
def stream_source(server: EmbeddedPostgres) -> Iterator[Source]:
    with writing(server) as source:
        yield source
