"""The matrix leaves nothing out: checked without striking anything."""

from __future__ import annotations

from itertools import product

import pytest

from penstock.failpoints import FAILPOINTS
from tests.chaos.matrix import (
    FOLLOWING,
    FOLLOWING_MONGODB,
    FOLLOWING_MYSQL,
    OF_COMPACTION,
    OF_FIELDS,
    OF_MIGRATION,
    OF_RESYNC,
    OF_REWIND,
    OF_SHAPES,
    OF_STREAMS,
    SCENARIOS,
    SCENARIOS_MONGODB,
    SCENARIOS_MYSQL,
    Scenario,
    has,
)
from tests.pipelines import DESTINATIONS

pytestmark = pytest.mark.chaos


def _struck(level: str) -> set[tuple[str, str]]:
    cases = [case for scenario in SCENARIOS for case in scenario.cases(level)]
    return {(destination, rule.partition("=")[0]) for destination, rule in cases}


@pytest.mark.parametrize("level", ["once", "full"])
def test_every_failpoint_is_struck_on_every_destination_that_has_it(level: str) -> None:
    elsewhere = OF_COMPACTION + OF_FIELDS + OF_MIGRATION + OF_RESYNC + OF_REWIND + OF_SHAPES
    elsewhere += OF_STREAMS
    names = [name for name in FAILPOINTS if name not in elsewhere]
    assert _struck(level) == {pair for pair in product(DESTINATIONS, names) if has(*pair)}


@pytest.mark.parametrize("scenario", [FOLLOWING_MYSQL, FOLLOWING_MONGODB])
@pytest.mark.parametrize("level", ["once", "full"])
def test_following_any_source_is_struck_wherever_following_postgres_is(
    level: str, scenario: Scenario
) -> None:
    def places(of: Scenario) -> set[tuple[str, str]]:
        return {(destination, rule.partition("=")[0]) for destination, rule in of.cases(level)}

    assert places(scenario) == places(FOLLOWING)


@pytest.mark.parametrize("scenario", [*SCENARIOS, *SCENARIOS_MYSQL, *SCENARIOS_MONGODB])
def test_one_round_strikes_every_failpoint_of_each_scenario(scenario: Scenario) -> None:
    struck = {rule.partition("=")[0] for _, rule in scenario.cases("once")}
    assert struck == {*scenario.names, *scenario.turns}
