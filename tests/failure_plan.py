"""What goes wrong between a publisher and its target, told by a seed: the same plan again strikes the same.

Whether and how the n-th request of an operation is struck depends on the seed, the operation and n alone, so
neither timing nor what other operations do changes it. `Plan.struck` is what was struck, to be printed by a
test that fails. A plan is shared by all connections of a proxy, and outlives those it cuts.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["reset", "slow", "lost", "late", "halved", "throttled", "failed", "partial"]
#: What each means; the last four need to know the protocol's answers, so only HTTP proxies have them.
KINDS: Mapping[Kind, str] = {
    "reset": "the connection is cut, the request is not passed on",
    "slow": "the answer waits for `seconds`",
    "lost": "the request is passed on and answered, but the answer is dropped and the connection cut",
    "late": "the connection is cut, and the request is passed on `seconds` after that",
    "halved": "the request is passed on, and half of its answer comes before the connection is closed",
    "throttled": "answered as if there were too many requests; not passed on",
    "failed": "answered with a server error; not passed on",
    "partial": "some records of the request are passed on, for the others the answer says that they failed",
}


@dataclass(frozen=True, slots=True)
class Fault:
    kind: Kind
    seconds: float = 0.0
    #: For whatever else must be drawn, such as the records of a partial failure.
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Struck:
    operation: str
    ordinal: int
    fault: Fault


class Plan:
    """`shares` of the requests of each operation are struck, or of those in `only`.

    `exactly` comes first: by operation and the request's ordinal in it, from 1.
    """

    def __init__(
        self,
        seed: int = 0,
        shares: Mapping[Kind, float] | None = None,
        *,
        seconds_max: float = 0.5,
        only: Collection[str] | None = None,
        exactly: Mapping[tuple[str, int], Fault] | None = None,
    ) -> None:
        self.seed = seed
        self.struck: list[Struck] = []
        self._shares = dict(shares or {})
        assert sum(self._shares.values()) <= 1
        self._seconds_max = seconds_max
        self._only = only
        self._exactly = dict(exactly or {})
        self._seen: Counter[str] = Counter()
        self._resting = False
        self._lock = threading.Lock()

    def next(self, operation: str) -> Fault | None:
        """What happens to this request: the next one of its operation."""
        with self._lock:
            self._seen[operation] += 1
            ordinal = self._seen[operation]
            fault = None if self._resting else self.drawn(operation, ordinal)
            if fault is not None:
                self.struck.append(Struck(operation, ordinal, fault))
            return fault

    def drawn(self, operation: str, ordinal: int) -> Fault | None:
        if (fault := self._exactly.get((operation, ordinal))) is not None:
            return fault
        if self._only is not None and operation not in self._only:
            return None
        chance = random.Random(f"{self.seed}/{operation}/{ordinal}")
        at = chance.random()
        for kind, share in self._shares.items():
            if (at := at - share) < 0:
                return Fault(kind, chance.uniform(0, self._seconds_max), chance.randrange(2**31))
        return None

    def rest(self) -> None:
        """Nothing goes wrong from now on."""
        self._resting = True

    def seen(self, operation: str) -> int:
        """How many requests of it there were."""
        return self._seen[operation]

    def __str__(self) -> str:
        kinds = Counter(struck.fault.kind for struck in self.struck)
        told = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        return f"seed {self.seed}: {told or 'nothing struck'}"
