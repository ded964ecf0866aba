"""What is wrong with a condition and where in it, and what a row does to one."""

from __future__ import annotations

from penstock.core.where.wording import Wording


class WhereError(ValueError):
    """`position` counts characters of the condition from 0.

    `location` is the place that shapes' clients are told, which for errors of syntax counts from the
    statement's beginning; None: the whole condition is wrong.
    """

    def __init__(
        self, message: str, position: int, wording: Wording = "penstock", location: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.position = position
        self.wording = wording
        self.location = location

    def __str__(self) -> str:
        if self.wording == "penstock":
            return f"at character {self.position + 1}: {self.message}"
        return self.message if self.location is None else f"At location {self.location}: {self.message}"


class EvaluationError(ValueError):
    """A row for which the condition has no answer, where Postgres fails too. Names no value."""
