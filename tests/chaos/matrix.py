"""What is struck: failpoints x scenarios x destinations, as much of it as `PENSTOCK_CHAOS` asks for.

`short`, unless it says otherwise (part of make test): a few places. `once` (make chaos-once): every place
on every destination that has it, and in every scenario that comes by it, but in some scenarios on one
destination only. `rest` (in CI, after make test): those of `once` that `short` leaves. `full` (make chaos):
the whole product, and each place also the second and third time it is reached.

To recover beside writers takes one more sync for each place, since the oracle needs one without them. So in
`once` the writers go on between crash and recovery, and rest when it begins; in `short`, in `full` and with
all pairs they go on throughout.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TypeVar

from penstock.failpoints import FAILPOINTS
from tests.pipelines import DESTINATIONS
from tests.share import is_in_share

ASKED = os.environ.get("PENSTOCK_CHAOS", "short") or "once"
#: How thoroughly: a round that leaves out what another has done is as thorough.
LEVEL = "once" if ASKED == "rest" else ASKED
FULL = LEVEL == "full"
ONCE = LEVEL == "once"
#: Workers of one run draw the same number, so that they know the same tests.
SEED = int(os.environ.get("PENSTOCK_CHAOS_SEED", "0")) or random.Random(
    os.environ.get("PYTEST_XDIST_TESTRUNUID")
).randrange(1, 10**6)

#: Reached by one destination only, as their descriptions say.
OF_PARQUET = ("destination.version_built", "destination.recorded", "destination.switched")
OF_ICEBERG = ("iceberg.staged", "iceberg.committed")
#: Reached when there is enough to merge: struck by the tests of compaction, which see to that.
OF_COMPACTION = tuple(name for name in FAILPOINTS if name.startswith("compact."))
#: struck by tests/unit/test_shape_storage_kill.py
OF_SHAPES = tuple(name for name in FAILPOINTS if name.startswith("shapes."))
#: struck by test_streams.py, by a matrix of its own
OF_STREAMS = tuple(name for name in FAILPOINTS if name.startswith("streams."))
#: struck by tests/integration/test_resync_diff.py
OF_RESYNC = tuple(name for name in FAILPOINTS if name.startswith("resync."))
#: struck by tests/integration/test_rewind.py
OF_REWIND = tuple(name for name in FAILPOINTS if name.startswith("rewind."))
#: struck by tests/integration/test_mongo_fields.py
OF_FIELDS = ("capture.fields_remembered",)
#: struck by tests/integration/test_migrate_sources.py
OF_MIGRATION = tuple(name for name in FAILPOINTS if name.startswith("migrate."))
LOAD = tuple(name for name in FAILPOINTS if name.startswith("load."))
Case = tuple[str, str]
Struck = TypeVar("Struck")


def has(destination: str, name: str) -> bool:
    return name not in (OF_PARQUET if destination == "iceberg" else OF_ICEBERG)


@dataclass(frozen=True)
class Scenario:
    """What a pipeline does when it is killed.

    `names` are struck on every destination. `turns` are struck on one each, beginning with `first`: other
    scenarios pass there too, and one of them has the other destination's turn. `besides` are struck in `full`
    only, for the same reason.
    """

    names: tuple[str, ...] = ()
    turns: tuple[str, ...] = ()
    besides: tuple[str, ...] = ()
    first: int = 0
    #: Pairs of destination and name
    short: tuple[Case, ...] = ()
    #: Struck in the midst of several streams, so that some are done and some are not.
    nth: Mapping[str, int] = field(default_factory=dict)
    times: int = 3
    destinations: tuple[str, ...] = tuple(DESTINATIONS)

    def cases(self, level: str = ASKED) -> list[Case]:
        """Pairs of destination and rule, as `PENSTOCK_FAILPOINT` has it."""
        if level == "rest":
            short = self.cases("short")
            return [case for case in self.cases("once") if case not in short]
        if level == "full":
            struck = product(self.destinations, self._all(), range(1, self.times + 1))
            return [(where, f"{name}=kill@{nth}") for where, name, nth in struck if has(where, name)]
        chosen = self.short if level == "short" else self._once()
        return [(where, f"{name}=kill@{self.nth.get(name, 1)}") for where, name in chosen]

    def _all(self) -> tuple[str, ...]:
        return (*self.names, *self.turns, *self.besides)

    def _once(self) -> list[Case]:
        chosen = [pair for pair in product(self.destinations, self.names) if has(*pair)]
        turn = [
            (self.destinations[(self.first + place) % len(self.destinations)], name)
            for place, name in enumerate(self.turns)
        ]
        return sorted([*chosen, *turn], key=lambda case: self.destinations.index(case[0]))


#: A pipeline that has loaded its tables and follows the log.
FOLLOWING = Scenario(
    names=tuple(
        name
        for name in FAILPOINTS
        if not name.startswith(
            (
                "load.",
                "capture.",
                "incremental.",
                "compact.",
                "resync.",
                "rewind.",
                "shapes.",
                "streams.",
                "migrate.",
            )
        )
    ),
    short=(
        ("parquet", "log.manifest_written"),
        ("parquet", "cdc.committed"),
        ("iceberg", "iceberg.committed"),
    ),
    nth={
        "cdc.written": 2,
        "cdc.committed": 2,
        "cdc.processed": 3,
        "destination.version_built": 3,
        "destination.recorded": 2,
        "iceberg.staged": 3,
        "iceberg.committed": 2,
        "state.version_written": 4,
    },
)
#: A pipeline that loads tables to follow them.
LOADING = Scenario(
    names=("capture.slot_created", "destination.file_write"),
    turns=LOAD,
    short=(("parquet", "load.committed"),),
    nth={"load.before_swap": 2, "load.swapped": 3, "load.done": 2},
)
#: A pipeline that loads its tables anew at each sync, and follows nothing.
REFRESHING = Scenario(
    turns=LOAD,
    besides=("destination.recorded", *OF_ICEBERG),
    first=1,
    nth={
        "load.before_swap": 2,
        "load.swapped": 3,
        "load.done": 2,
        "iceberg.staged": 2,
        "iceberg.committed": 3,
    },
)
#: A pipeline that reads on by cursors.
READING_ON = Scenario(
    names=tuple(name for name in FAILPOINTS if name.startswith("incremental.")),
    turns=("state.version_written",),
    besides=("destination.version_built", "destination.recorded", *OF_ICEBERG),
    first=1,
    short=(("parquet", "incremental.prepared"),),
    nth={"incremental.committed": 2, "state.version_written": 2, "iceberg.committed": 2},
    times=2,
)
#: A pipeline that loads tables to read on in them.
LOADING_TO_READ_ON = Scenario(
    turns=("load.committed", "load.swapped"),
    besides=("load.planned", "load.before_swap", "load.done"),
    first=1,
    times=2,
)
#: The same of a pipeline that reads MySQL.
FOLLOWING_MYSQL = Scenario(
    names=FOLLOWING.names,
    short=(("parquet", "log.manifest_written"),),
    nth=FOLLOWING.nth,
)
LOADING_MYSQL = Scenario(
    turns=("capture.slot_created", "destination.file_write", *LOAD),
    first=1,
    short=(("parquet", "load.committed"),),
    nth=LOADING.nth,
)
#: And of one that reads MongoDB, where streams have a position each.
FOLLOWING_MONGODB = Scenario(
    names=FOLLOWING.names,
    short=(("parquet", "cdc.committed"), ("iceberg", "iceberg.committed")),
    nth={"cdc.written": 2, "cdc.committed": 2, "cdc.processed": 2, "iceberg.committed": 2},
)
LOADING_MONGODB = Scenario(
    names=("capture.slot_created", *LOAD),
    nth={"load.swapped": 2, "load.done": 2},
)
SCENARIOS = (FOLLOWING, LOADING, REFRESHING, READING_ON, LOADING_TO_READ_ON)
SCENARIOS_MYSQL = (FOLLOWING_MYSQL, LOADING_MYSQL)
SCENARIOS_MONGODB = (FOLLOWING_MONGODB, LOADING_MONGODB)


def shared(cases: Sequence[Struck]) -> Sequence[Struck]:
    """Of a source whose pipelines share most of their code with those of another: in `rest` the part that
    `SHARE` asks for, another one with each commit."""
    return [case for case in cases if is_in_share(str(case))] if ASKED == "rest" else cases


#: Killed at the first, and killed again at the second while it recovers.
_PAIRS_IN_FULL = 40


def pairs() -> list[tuple[str, str, str]]:
    if FULL:
        drawn = random.Random(SEED)
        return [
            (where, *pair)
            for where in DESTINATIONS
            for names in [[name for name in FOLLOWING.names if has(where, name)]]
            for pair in drawn.sample(list(product(names, names)), _PAIRS_IN_FULL)
        ]
    chosen = [("parquet", "cdc.committed", "cdc.moved"), ("iceberg", "iceberg.committed", "cdc.processed")]
    return {"short": chosen[:1], "rest": chosen[1:]}.get(ASKED, chosen)
