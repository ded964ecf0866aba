"""A tool in a process of its own that answers one line of JSON to each line of request."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.comparison import Run
from bench.resources import measured


class PeerError(Exception):
    """The tool beside Penstock could not be run; the message says what to do."""


class Worker:
    def __init__(self, name: str, command: Sequence[str], first_lines: Sequence[str], log: Path) -> None:
        self._name = name
        self._log = log
        with open(log, "wb") as errors:
            self._process = subprocess.Popen(
                list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._send(first_lines)

    def run(self, request: str) -> Run:
        """One request. Clock and row count are the tool's own, the cost is that of its process tree."""
        with measured(self._process.pid) as meter:
            self._send([request])
            answer = self._receive()
        return Run(int(answer["rows"]), replace(meter.usage, seconds=float(answer["seconds"])))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self._process.kill()
        self.close()

    def _send(self, lines: Sequence[str]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.writelines(f"{line}\n" for line in lines)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        # Tools print words of their own; ours are the lines that are JSON objects.
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise self._ended()

    def _ended(self) -> PeerError:
        last_words = self._log.read_text(errors="replace").strip().splitlines()[-15:]
        return PeerError(f"{self._name} ended early. Its last words:\n" + "\n".join(last_words))
