"""When something is tried again, and when no more: exponential pauses of which a random part is waited."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.backoff import pause_s


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`max_attempts` is for errors of a record, where a target has such; a target is tried without end."""

    max_attempts: int = 10
    least_s: float = 0.05
    most_s: float = 30.0

    def is_exhausted(self, attempts: int) -> bool:
        return attempts >= self.max_attempts

    def pause_s(self, attempts: int) -> float:
        """After so many failures in a row, at least one."""
        return pause_s(attempts - 1, self.least_s, self.most_s)
