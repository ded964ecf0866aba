"""Servers that chains of crashes share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.sources.postgres.embedded import EmbeddedPostgres
from tests.chaos.stream_chain import Source, writing
from tests.kinesis_server import Kinesalite
from tests.share import of_part


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of the chains of crashes a part, if that is asked for."""
    here = Path(__file__).parent
    asked = {*of_part([item for item in items if here in item.path.parents])}
    gone = [item for item in items if here in item.path.parents and item not in asked]
    config.hook.pytest_deselected(items=gone)
    items[:] = [item for item in items if item not in {*gone}]


@pytest.fixture(scope="session")
def kinesis() -> Iterator[Kinesalite]:
    with Kinesalite() as running:
        yield running


@pytest.fixture(scope="module")
def stream_source(server: EmbeddedPostgres) -> Iterator[Source]:
    with writing(server) as source:
        yield source
