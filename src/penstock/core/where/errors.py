"""What is wrong with a condition, and where in it."""

from __future__ import annotations


class WhereError(ValueError):
    """`position` counts characters of the condition from 0."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.message = message
        self.position = position

    def __str__(self) -> str:
        return f"at character {self.position + 1}: {self.message}"
