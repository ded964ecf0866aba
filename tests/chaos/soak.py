"""A leader and a standby of `penstock run`, under 2,000 changes a second, while something breaks every while.

What breaks is drawn from the seed alone, which is printed: a run is repeated by `PENSTOCK_CHAOS_SEED`, but
for what depends on the moment. Every kind comes once, then any; what found nobody to strike does not count.
At the end nothing breaks any more, the writers stop, and the source is told that it may forget everything:
then every value of every table is compared, and append tables with the history that the source kept by
itself; so is the file of a stream lane that follows some of those. No change may be lost or doubled, no
process may have outgrown its memory, and both instances must end in order. And it must have been that much:
the rate is of changes that were committed, over the seconds in which the source was there.

The pipeline's directory lies on a file system of its own where one can be mounted, so that it can run full.
"""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any

import psutil
import psycopg

from penstock.sources.postgres.embedded import EmbeddedPostgres
from tests.chaos.soak_writers import APPEND, UPSERT, SoakWriters
from tests.conftest import wait_until
from tests.pipelines import DESTINATIONS, PipelineUnderTest, streams_of
from tests.running import (
    ROLES,
    Instance,
    Role,
    flushed_position,
    instances,
    is_acknowledged,
    terminate_backends,
)
from tests.stream_reader import assert_told, read_file

_MIB = 1024 * 1024
#: Of one process, at its highest: capture's promise, what a process that only watches may need, and what
#: those of the lake may for batches of this size. A stream lane may have half as much again as `make bench`
#: allows one that nothing disturbs: in two minutes of faults it came to 413 of those 512 MiB.
MEMORY_BYTES_MAX: Mapping[str, int] = {
    "capture": 512 * _MIB,
    "supervisor": 200 * _MIB,
    "lake": 1024 * _MIB,
    "stream": 768 * _MIB,
    "worker": 1024 * _MIB,
    "jvm": 2048 * _MIB,
}
#: Whose changes the stream lane sends: a tenth of all, so that the judge can keep them in memory.
_TOLD = APPEND[:3]
CHANGES_PER_S = 2000.0
_CHANGES_PER_S_MIN = 0.8 * CHANGES_PER_S
_DISK = "4g"
_LEVEL_TIMEOUT_S = 300.0
_FAULTS_FROM_S = 60.0  # a run that long has one at least
_EVERY_KIND_FROM_S = 600.0
_SETTINGS: Mapping[str, Any] = {
    "log": {"retention": "0s", "seal_every": "1s"},
    "lanes": {"lake": {"every": "2s"}},
    "load": {"rows_per_chunk": 500},
    "readers": {"grace": "5s"},
    "run": {"restarts_max": 10_000, "heartbeat": "1s"},
}


@dataclass(frozen=True)
class Fault:
    """Something that breaks, after a pause; `chance` is what it draws its details from."""

    pause_s: float
    kind: str
    chance: random.Random


def faults(seed: int) -> Iterator[Fault]:
    """The endless sequence of one seed."""
    drawn = random.Random(f"{seed}/faults")
    kinds, weights = list(_KINDS), [kind.weight for kind in _KINDS.values()]
    for kind in chain(drawn.sample(kinds, len(kinds)), (drawn.choices(kinds, weights)[0] for _ in count())):
        yield Fault(drawn.uniform(10, 20), kind, random.Random(drawn.random()))


@dataclass(frozen=True)
class Struck:
    """`what` happened; or that nobody was there whom it could happen to."""

    what: str
    hit: bool = True


class Soak:
    """One run. `run` returns when all that the module promises was seen, and raises if not."""

    def __init__(self, directory: Path, seed: int, *, has_disk: bool, destination: str = "parquet") -> None:
        self.server = EmbeddedPostgres()
        self.directory = directory
        self.has_disk = has_disk
        self._destination = destination
        self._seed = seed
        self._began = time.monotonic()
        self._struck: Counter[str] = Counter()

    def run(self, seconds: float) -> None:
        self.say(f"seed {self._seed}, {seconds:.0f} s, {self._destination} tables")
        with self.server:
            self.writers = SoakWriters(self.server.url(), self._seed, CHANGES_PER_S)
            self.writers.setup()
            self.pipeline = self._pipeline()
            self.pair = [Instance(self.pipeline, "a"), Instance(self.pipeline, "b", self._of_the_other())]
            try:
                with instances(*self.pair), _Memory(self.pair) as memory:
                    self._soak(seconds)
                    self._settle()
                    self._end(memory)
            except BaseException:
                for instance in self.pair:
                    print(instance.said())
                raise

    def _pipeline(self) -> PipelineUnderTest:
        destination = {"destination": DESTINATIONS[self._destination]}
        file = {"path": str(self._file), "streams": list(_TOLD), "execution": "inline"}
        lanes = {"lanes": {**_SETTINGS["lanes"], "file": file}}
        streams = streams_of(UPSERT, APPEND)
        return PipelineUnderTest(
            self.directory, self.server.url(), streams, {**_SETTINGS, **destination, **lanes}
        )

    @property
    def _file(self) -> Path:
        return self.directory / "told.ndjson"

    def _of_the_other(self) -> dict[str, Any]:
        """A state directory of its own, with every other seed, and Spark kept ready."""
        own = self._seed % 2 == 1
        self.say(f"the instances {'have states of their own' if own else 'share their state'}")
        return {"run": {"standby": "warm"}, **({"state": "./state-b"} if own else {})}

    def _soak(self, seconds: float) -> None:
        self.writers.start()
        self.pair[0].start()
        self.pair[0].wait_until(lambda: self.pair[0].leading, "the first instance to lead")
        # It compiles what it needs first, where nobody has: nothing would break in the midst of its work.
        self.pair[0].wait_until(
            lambda: self.pair[0].state_of("file") == "running", "the stream lane to follow", _LEVEL_TIMEOUT_S
        )
        self.pair[1].start()
        end = time.monotonic() + seconds
        try:
            for fault in faults(self._seed):
                if time.monotonic() + fault.pause_s > end:
                    break
                self.watch(fault.pause_s)
                struck = _KINDS[fault.kind].strike(self, fault.chance)
                self.say(f"{fault.kind}: {struck.what}")
                self._struck[fault.kind] += struck.hit
            self.watch(max(end - time.monotonic(), 0))
        finally:
            self.writers.stop()
        assert self._struck.total() or seconds < _FAULTS_FROM_S, "nothing broke"
        possible = set(_KINDS) - (set() if self.has_disk else {"disk full"})
        assert set(+self._struck) >= possible or seconds < _EVERY_KIND_FROM_S, f"only {self._faults()} broke"

    def watch(self, seconds: float) -> None:
        """Whoever was killed is started again, as a service manager would do it."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for instance in self.pair:
                if not instance.alive:
                    instance.start()
                    self.say(f"{instance.name} is started again")
            time.sleep(min(1.0, max(end - time.monotonic(), 0)))

    def _settle(self) -> None:
        self.watch(0.1)
        target = flushed_position(self.server.url())
        began = time.monotonic()

        def is_told() -> bool:
            self.watch(0.2)
            return is_acknowledged(self.server.url(), self.pipeline.name, target)

        wait_until(
            is_told,
            f"the source to be told that {target} is in the tables",
            _LEVEL_TIMEOUT_S,
        )
        self.say(f"level with the source {time.monotonic() - began:.1f} s after the last write")
        self.pipeline.assert_same(*UPSERT)
        self.pipeline.assert_history(*APPEND, one_moment=False)
        told = read_file(self._file)
        # A lane that is killed while it loads may begin its load again.
        judged = [assert_told(self.server.url(), table, told, resumed=True) for table in _TOLD]
        changes = sum(each.changes for each in judged)
        assert changes, "the stream lane was told of nothing"
        self.say(
            f"every value is equal, every change is there once, {changes} of them in the stream's file too"
        )

    def _end(self, memory: _Memory) -> None:
        # The standby goes first: it must not take over from a leader that ends.
        for instance in sorted(self.pair, key=lambda instance: instance.leading):
            status = instance.stop()
            assert status == 0, f"{instance.name} ended with {status}\n{instance.said()}"
        self.say(f"faults: {self._faults()}")
        self.say(
            f"{self.writers.changes} changes, {self.writers.rate:.0f} a second (at least "
            f"{_CHANGES_PER_S_MIN:.0f}) while the source was there; it was away for "
            f"{self.writers.away_s:.1f} s, {self.writers.reconnects} connections were made again"
        )
        for line in memory.lines():
            self.say(f"highest memory: {line}")
        memory.check()
        assert self.writers.rate >= _CHANGES_PER_S_MIN, f"only {self.writers.rate:.0f} changes a second"

    def _faults(self) -> str:
        return ", ".join(f"{kind} {self._struck[kind]}" for kind in _KINDS)

    def say(self, what: str) -> None:
        print(f"soak {time.monotonic() - self._began:7.1f} s  {what}", flush=True)

    # -- for faults ---------------------------------------------------------------------------

    def leader(self) -> Instance | None:
        return next((instance for instance in self.pair if instance.leading), None)


# -- what breaks ------------------------------------------------------------------------------------------


def _kill(soak: Soak, chance: random.Random) -> Struck:
    """One process, of the leader more often than not."""
    roles = (*ROLES, "stream")
    role, of_leader, either = chance.choice(roles), chance.random() < 0.7, chance.choice(soak.pair)
    instance = (soak.leader() if of_leader else None) or either
    found = [process for process, its_role in instance.processes() if its_role == role]
    if not found:
        return Struck(f"no {role} in {instance.name}", hit=False)
    with contextlib.suppress(psutil.NoSuchProcess):
        chance.choice(found).kill()
    return Struck(f"{role} of {instance.name}")


def _freeze_leader(soak: Soak, chance: random.Random) -> Struck:
    """The whole instance stands still, then goes on as if nothing had happened."""
    leader = soak.leader()
    if leader is None:
        return Struck("nobody leads", hit=False)
    leader.send(signal.SIGSTOP)
    soak.watch(8)
    others = [instance.name for instance in soak.pair if instance is not leader and instance.leading]
    leader.send(signal.SIGCONT)
    return Struck(f"{leader.name} for 8 s; led meanwhile by {', '.join(others) or 'nobody'}")


def _restart_source(soak: Soak, chance: random.Random) -> Struck:
    crash = chance.random() < 0.5
    soak.server.kill() if crash else soak.server.stop()
    soak.watch(chance.choice((0, 0, 5)))
    soak.server.start()
    return Struck("immediately" if crash else "in order")


def _cut_connections(soak: Soak, chance: random.Random) -> Struck:
    with contextlib.suppress(psycopg.OperationalError):
        return Struck(f"{terminate_backends(soak.server.url())} connections")
    return Struck("the source was away", hit=False)


def _slow_lake(soak: Soak, chance: random.Random) -> Struck:
    """Its process and Spark's JVM, where there is one: small rounds need none."""
    leader = soak.leader()
    if leader is None:
        return Struck("nobody leads", hit=False)
    stopped = leader.send(signal.SIGSTOP, "lake") + leader.send(signal.SIGSTOP, "jvm")
    soak.watch(chance.choice((3, 6)))
    stood_still = [pid for pid in stopped if _stands_still(pid)]
    leader.send(signal.SIGCONT, "lake")
    leader.send(signal.SIGCONT, "jvm")
    what = f"{len(stood_still)} of {len(stopped)} processes of the lake of {leader.name}"
    return Struck(f"{what} for some seconds", hit=bool(stood_still))


def _stands_still(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False


def _full_disk(soak: Soak, chance: random.Random) -> Struck:
    if not soak.has_disk:
        return Struck("left out: no file system of its own could be mounted here", hit=False)
    used = _fill(soak.directory)
    soak.watch(chance.choice((3, 8)))
    _resize(soak.directory, _DISK)
    return Struck(f"at {used / _MIB:.0f} MiB, for some seconds")


@dataclass(frozen=True)
class _Kind:
    strike: Callable[[Soak, random.Random], Struck]
    weight: int


_KINDS: Mapping[str, _Kind] = {
    "killed": _Kind(_kill, 8),
    "leader frozen": _Kind(_freeze_leader, 2),
    "source restarted": _Kind(_restart_source, 2),
    "connections cut": _Kind(_cut_connections, 2),
    "lake slow": _Kind(_slow_lake, 1),
    "disk full": _Kind(_full_disk, 2),
}


# -- the disk ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def own_disk(directory: Path) -> Iterator[bool]:
    """Mount one in memory at `directory`, if we may; whether we could.

    Who unmounts it waits for the end of its input, which comes with ours, however we end.
    """
    directory.mkdir(parents=True, exist_ok=True)
    mount = 'mount -t tmpfs -o "size=$1" tmpfs "$2" || exit; echo mounted; read -r _; umount --lazy "$2"'
    with subprocess.Popen(
        ["sh", "-c", mount, "sh", _DISK, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # an interrupt of the whole group is not for it
    ) as keeper:
        assert keeper.stdout is not None
        mounted = keeper.stdout.readline() == b"mounted\n"
        yield mounted
    assert not mounted or keeper.returncode == 0, f"{directory} is still mounted"


def _fill(directory: Path) -> int:
    """Leave next to nothing free; how many bytes are used. That may take some tries: others write."""
    slack = 64 * 1024
    while True:
        used = psutil.disk_usage(str(directory)).used
        try:
            _resize(directory, str(used + slack))
        except subprocess.CalledProcessError:  # more is used by now
            slack *= 2
            assert slack < 1024 * _MIB, f"{directory} cannot be made smaller"
        else:
            return used


def _resize(directory: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(directory)], check=True, capture_output=True)


# -- memory -----------------------------------------------------------------------------------------------


@dataclass
class _Memory:
    """Notes, until it is left, the highest resident memory of the processes of each role and instance."""

    pair: list[Instance]
    highest: dict[tuple[str, Role], int] = field(default_factory=dict)
    _ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> _Memory:
        self._thread = threading.Thread(target=self._note, name="soak memory")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _note(self) -> None:
        while not self._ended.wait(1):
            for instance in self.pair:
                for process, role in instance.processes():
                    whose = (instance.name, role)
                    self.highest[whose] = max(self.highest.get(whose, 0), _high_water(process.pid))

    def check(self) -> None:
        for role in MEMORY_BYTES_MAX:
            assert any(role == seen for _, seen in self.highest), f"no {role} was ever seen"
        too_much = [each for each in self.highest if self.highest[each] >= MEMORY_BYTES_MAX[each[1]]]
        assert not too_much, f"{too_much} outgrew their memory"

    def lines(self) -> list[str]:
        return [
            f"{role} of {name} {bytes_ / _MIB:.0f} of {MEMORY_BYTES_MAX[role] / _MIB:.0f} MiB"
            for (name, role), bytes_ in sorted(self.highest.items(), key=lambda each: each[0][::-1])
        ]


def _high_water(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)
