"""What a piece of work costs: wall time, CPU seconds and peak memory of a whole process tree.

CPU is read from /proc/<pid>/stat: user and system time of every living process of the tree plus that of
children its processes have already waited for, after minus before. A process that ends in between is
therefore still counted, by its parent. Everything named as a database is (`_DATABASES`) is left out with its
children, so that what remains is the cost *outside* the database, whoever started the server.

Memory is the sum of the proportional set sizes (PSS) of the tree, sampled while the work runs: pages that
forked workers share are counted once. Reading them is not cheap, so the sampler's own CPU time is taken
off the result.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

SAMPLE_INTERVAL_S = 0.5
DRIVER_INTERVAL_S = 0.1
_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_DATABASES = ("postgres", "mongod", "ld-linux-x86-64")  # MySQL is started by a loader of its own


@dataclass(frozen=True, slots=True)
class Usage:
    seconds: float
    cpu_s: float
    memory_peak_bytes: int


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    parent: int
    name: str
    ticks: int  # own and those of children that were waited for


class Meter:
    """Filled in when the block it was given for ends; `restart` leaves out what came before it."""

    def __init__(self, root: int, sampler: _MemorySampler) -> None:
        self._root = root
        self._sampler = sampler
        self._usage: Usage | None = None
        self.restart()

    def restart(self) -> None:
        self._cpu_before = self._cpu_s()
        self._started = time.perf_counter()

    def _stop(self) -> None:
        seconds = time.perf_counter() - self._started
        self._usage = Usage(seconds, self._cpu_s() - self._cpu_before, self._sampler.peak_bytes)

    def _cpu_s(self) -> float:
        own = self._sampler.cpu_s if self._root == os.getpid() else 0.0
        return cpu_s(self._root) - own

    @property
    def usage(self) -> Usage:
        assert self._usage is not None, "the measured block has not ended"
        return self._usage


@contextmanager
def measured(root: int | None = None) -> Iterator[Meter]:
    """Measure the block: the tree of process `root`, by default this process."""
    root = root or os.getpid()
    with _MemorySampler(root) as sampler:
        meter = Meter(root, sampler)
        try:
            yield meter
        finally:
            meter._stop()


def run_measured(command: Sequence[str], environment: Mapping[str, str]) -> Usage:
    """Run a program to its end; the kernel tells its parent the CPU time it used."""
    started = time.perf_counter()
    process = subprocess.Popen(list(command), env=dict(environment), stdin=subprocess.DEVNULL)
    with _MemorySampler(process.pid) as sampler:
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command[0])
    # Its ru_maxrss is of no use: it begins with the size of the process that forked it.
    return Usage(seconds, used.ru_utime + used.ru_stime, sampler.peak_bytes)


def driver_peak_bytes(command: Sequence[str]) -> int:
    """Run a program that starts Spark; the peak memory of it and of its Java, without Spark's workers.

    The kernel keeps the peak of each process (VmHWM), so that looking now and then misses none that lasts.
    """
    peaks: dict[int, int] = {}
    process = subprocess.Popen(list(command), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        for each in _tree(process.pid):
            if each.pid == process.pid or each.name == "java":
                peaks[each.pid] = max(peaks.get(each.pid, 0), peak_bytes(each.pid))
        time.sleep(DRIVER_INTERVAL_S)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command[0])
    return sum(peaks.values())


class _MemorySampler:
    def __init__(self, root: int) -> None:
        self.peak_bytes = 0
        self.cpu_s = 0.0
        self._root = root
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="memory-sampler", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _sample(self) -> None:
        while True:
            self.peak_bytes = max(self.peak_bytes, memory_bytes(self._root))
            self.cpu_s = time.thread_time()
            if self._stopping.wait(SAMPLE_INTERVAL_S):
                return


def cpu_s(root: int) -> float:
    """CPU seconds that the tree has used so far, without the database."""
    return sum(process.ticks for process in _tree(root)) / _TICKS_PER_S


def memory_bytes(root: int) -> int:
    """The tree's memory now, without the database; shared pages counted once."""
    return sum(_proportional_bytes(process.pid) for process in _tree(root))


def _tree(root: int) -> list[_Process]:
    children: dict[int, list[_Process]] = defaultdict(list)
    top: _Process | None = None
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (process := _read(int(entry.name))) is not None:
            children[process.parent].append(process)
            if process.pid == root:
                top = process
    found: list[_Process] = []
    waiting = [top] if top else []
    while waiting:
        process = waiting.pop()
        if process.name not in _DATABASES:
            found.append(process)
            waiting.extend(children[process.pid])
    return found


def _read(pid: int) -> _Process | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None  # ended meanwhile
    # The name is in parentheses and may itself hold spaces and parentheses.
    name = text[text.index("(") + 1 : text.rindex(")")]
    fields = text[text.rindex(")") + 2 :].split()
    return _Process(pid, int(fields[1]), name, sum(int(field) for field in fields[11:15]))


def _proportional_bytes(pid: int) -> int:
    with suppress(OSError):
        for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def peak_bytes(pid: int) -> int:
    """The most that one process has had, as the kernel has kept it."""
    with suppress(OSError):
        for line in (_PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0
