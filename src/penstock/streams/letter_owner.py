"""Whose a lane's file of dead letters is: of which term, and whether the target knows of these letters.

Every write checks that no later term has begun (correctness 40).

A target that takes events and standing at once keeps the file's id while there are letters. Whoever has
another file, an instance with a state directory of its own, would send later events of blocked keys: it does
not begin, unless somebody orders it to. Where there are no letters, any instance goes on; should there be
some all the same in a file that comes back, written before a commit that never happened, then others have
decided over their events meanwhile, and to keep them might double them: it is not gone on with either.
"""

from __future__ import annotations

import uuid

from penstock.core.errors import StaleTermError, StateError
from penstock.core.position import Lsn
from penstock.streams.letter_file import LetterFile
from penstock.streams.publisher import Standing, Term

_SHARE = (
    "Let the instances share one state directory, or put the file there that the target's events belong to. "
    "To go on with this one on purpose: `penstock lane rewind {lane} --to {position}`."
)


class LetterOwner:
    """Used within transactions of the file."""

    def __init__(self, file: LetterFile, lane: str) -> None:
        self._file = file
        self._lane = lane
        self._epoch = Lsn(0)
        self.source = ""  # the system id of the term's source
        self.file_id = ""

    def begin(self, term: Term, standing: Standing | None) -> bool:
        """A term takes the file over, with what the target holds; whether an earlier one was of its source.

        A `StaleTermError` if a later one has; a `StateError` if target and file know of other letters.
        """
        of, epoch = self._held_term()
        if of == term.system_id and epoch > term.epoch:
            raise self._stale()
        self.file_id = self._file.fact("id", "") or uuid.uuid4().hex
        self._file.set_fact("id", self.file_id)
        if not (standing is None or standing.letters is None or term.leaves_letters(standing)):
            self._check_letters(standing)
        self._file.set_fact("system_id", term.system_id)
        self._file.set_fact("epoch", str(term.epoch))
        self.source, self._epoch = term.system_id, term.epoch
        return of == term.system_id

    def check(self) -> None:
        """A `StaleTermError` if a later term has taken the file over."""
        if self._held_term() != (self.source, self._epoch):
            raise self._stale()

    def _check_letters(self, standing: Standing) -> None:
        remedy = _SHARE.format(lane=self._lane, position=standing.position)
        if standing.letters not in ("", self.file_id):
            raise StateError(
                f"The lane {self._lane} has dead letters in another state directory, not in "
                f"{self._file.path}: later events of their keys would be sent before them.",
                remedy=remedy,
            )
        if not standing.letters and self._file.count("batch <= ?", (standing.batches,)):
            raise StateError(
                f"{self._file.path} has dead letters of lane {self._lane} that an instance with another "
                "state directory went on without, and perhaps sent.",
                remedy=remedy,
            )

    def _held_term(self) -> tuple[str, Lsn]:
        """Whose letters they are. Epochs are positions of one source: those of another are not compared."""
        return self._file.fact("system_id", ""), Lsn.parse(self._file.fact("epoch", "0/0"))

    def _stale(self) -> StaleTermError:
        return StaleTermError(f"A later leader writes the dead letters of lane {self._lane}.")
