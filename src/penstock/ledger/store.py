"""The state file on disk: `state.json`, and every version of it in `state.history/`.

A save first creates `state.history/<version>.json` exclusively under the number after the version the
writer had loaded, then replaces `state.json` with the same bytes. So the history is the truth and the
fence (of two writers that loaded the same version, one can create the next number), and `state.json`
is its newest entry, for people and for other tools. Why loading is safe:

- the process died between the two writes: the history is one ahead, its content is taken;
- a person edited `state.json` or put another tool's file there: it is not what the history has under
  the number it claims, so it is taken as it is, and the next save goes on from the highest number;
- anything that cannot be told apart with certainty, or cannot be read, is an error that names the
  newest good version; a pipeline never starts from zero because its memory was lost.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from penstock import durable, failpoints
from penstock.core.errors import StateError
from penstock.core.position import Lsn
from penstock.ledger import state_json
from penstock.ledger.state import StateDocument

#: The newest versions, and of the newest rounds what each came to: one of many streams has many versions.
VERSIONS_KEPT = ROUNDS_KEPT = 50
_ROUNDS_LOOKED_FOR_IN = 4 * ROUNDS_KEPT  # versions, of all that are there the newest
_PRUNE_EVERY_VERSIONS = 10
_TEMPORARY_AGE_MAX_S = 3600.0


@dataclass(frozen=True, slots=True)
class StateVersion:
    """One entry of the history. `reason` is empty if it can be read, else says why not."""

    version: int
    saved_at: datetime
    path: Path
    reason: str = ""


def _as_it_is(document: StateDocument) -> StateDocument:
    return document


class StateStore:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "state.json"
        self.history_directory = directory / "state.history"
        self._ends_round: dict[int, bool] = {}

    def load(self) -> StateDocument | None:
        """The newest state; None only if this directory never had one. Writes nothing."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return self._load_without_file()
        document = self._parse(self.path, content)
        highest = self._highest()
        claimed = document.state_version
        if claimed is None:
            return document.numbered(highest)
        if claimed >= highest:
            return document
        return self._load_behind_history(document, claimed, highest)

    def save(self, document: StateDocument) -> StateDocument:
        """Make `document` the newest version, durably; StateError if another process was faster."""
        version = (document.state_version or 0) + 1
        if self._highest() >= version:
            raise self._lost(version)
        numbered = document.numbered(version)
        content = state_json.encode(numbered.to_json())
        path = self._version_path(version)
        if not durable.create_exclusively(path, content):
            raise self._lost(version)
        if self._highest() - version >= VERSIONS_KEPT:
            # We slept so long that the number had been used and pruned again.
            path.unlink(missing_ok=True)
            raise self._lost(version)
        failpoints.reach("state.version_written")
        durable.replace(self.path, content)
        if version % _PRUNE_EVERY_VERSIONS == 0:
            self._prune()
        return numbered

    def restore(self, version: int | None = None) -> StateDocument:
        """Save an earlier version (the newest good one by default) as the newest."""
        if version is None:
            version = self._newest_good()
            if version is None:
                raise StateError(
                    f"There is no readable version in {self.history_directory}.",
                    remedy="Restore the state directory from a backup, or run `penstock resync --yes`.",
                )
        document = self._read_version(version)
        # Tables that were written under a newer epoch were written with this state, not with another's.
        epoch = self._newest_epoch()
        restored = document if epoch is None else document.led_by(epoch)
        return self.save(restored.numbered(self._highest()))

    def _newest_epoch(self) -> Lsn | None:
        newest = self._newest_good()
        return None if newest is None else self._read_version(newest).epoch

    def reset(self, changed: Callable[[StateDocument], StateDocument] = _as_it_is) -> StateDocument:
        """Save a state without any stream, or what `changed` makes of it, as the newest. The history stays.

        It says that the tables are to be loaded anew: a state that was merely lost says no such thing.
        """
        newest = self._newest_good()
        source = "postgres" if newest is None else self._read_version(newest).source
        return self.save(changed(StateDocument.new(source=source).emptied().numbered(self._highest())))

    def version(self, version: int) -> StateDocument:
        """An earlier one, as it was saved."""
        return self._read_version(version)

    def history(self) -> list[StateVersion]:
        """Every version kept, newest first."""
        entries = []
        for version in sorted(self._versions(), reverse=True):
            path = self._version_path(version)
            try:
                saved_at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
                reason = _unreadable_reason(path.read_bytes())
            except FileNotFoundError:  # pruned meanwhile
                continue
            entries.append(StateVersion(version, saved_at, path, reason))
        return entries

    def _load_without_file(self) -> StateDocument | None:
        versions = self._versions()
        if not versions:
            return None
        if versions == [1]:  # the very first save was cut short before state.json
            return self._read_version(1)
        raise StateError(
            f"{self.path} is missing, although this pipeline has run before.", remedy=self._restore_remedy()
        )

    def _load_behind_history(self, document: StateDocument, claimed: int, highest: int) -> StateDocument:
        if not self._version_path(claimed).exists():
            raise StateError(
                f"{self.path} says it is version {claimed}, which the history no longer has "
                f"(the newest is {highest}).",
                remedy=f"{self._restore_remedy()} To use the file as it is, remove `state_version` from it.",
            )
        if document == self._read_version(claimed):
            return self._read_version(highest)
        return document.numbered(highest)

    def _read_version(self, version: int) -> StateDocument:
        path = self._version_path(version)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            kept = ", ".join(map(str, sorted(self._versions(), reverse=True)[:5]))
            raise StateError(
                f"The history has no version {version}.", remedy=f"Choose one of those kept ({kept}, …)."
            ) from None
        return self._parse(path, content)

    def _parse(self, path: Path, content: bytes) -> StateDocument:
        try:
            return StateDocument(state_json.decode(content))
        except ValueError as error:
            raise StateError(f"{path} cannot be used: {error}.", remedy=self._restore_remedy()) from None

    def _restore_remedy(self) -> str:
        newest = self._newest_good()
        if newest is None:
            return "There is no good version in state.history; restore the state directory from a backup."
        command = "`penstock state restore`"
        return (
            f"Run {command}: the newest good version in history is {newest} ({self._version_path(newest)})."
        )

    def _newest_good(self) -> int | None:
        return next((entry.version for entry in self.history() if not entry.reason), None)

    def _lost(self, version: int) -> StateError:
        return StateError(
            f"Another process writes this state: version {version} of {self.path} is not ours.",
            remedy="Let the other process finish, or stop it, then run the command again.",
        )

    def _version_path(self, version: int) -> Path:
        return self.history_directory / f"{version:020d}.json"

    def _versions(self) -> list[int]:
        try:
            paths = list(self.history_directory.iterdir())
        except FileNotFoundError:
            return []
        return [int(path.stem) for path in paths if path.suffix == ".json" and path.stem.isdigit()]

    def _highest(self) -> int:
        return max(self._versions(), default=0)

    def _prune(self) -> None:
        """Keep the newest versions and ends of rounds, and the last version of every hour before them."""
        versions = sorted(self._versions(), reverse=True)
        ends = self._round_ends(versions[:_ROUNDS_LOOKED_FOR_IN])
        hours: set[int] = set()
        for version in versions[VERSIONS_KEPT:]:
            path = self._version_path(version)
            hour = int(path.stat().st_mtime // 3600)
            if hour in hours and version not in ends:
                path.unlink(missing_ok=True)
            hours.add(hour)
        # Only our own: capture keeps its checkpoint in the same directory.
        leftovers = [*self.directory.glob(".state.json.*.tmp"), *self.history_directory.glob(".*.json.*.tmp")]
        for leftover in leftovers:
            with contextlib.suppress(FileNotFoundError):
                if leftover.stat().st_mtime < time.time() - _TEMPORARY_AGE_MAX_S:
                    leftover.unlink()

    def _round_ends(self, versions: Sequence[int]) -> set[int]:
        """Of these, newest first, the newest that were saved with nothing under way."""
        known = self._ends_round
        self._ends_round = {}
        ends: set[int] = set()
        for version in versions:
            if version not in known:
                try:
                    known[version] = not self._read_version(version).is_under_way
                except StateError:
                    known[version] = False  # it cannot be read, or is gone
            self._ends_round[version] = known[version]
            if known[version]:
                ends.add(version)
            if len(ends) == ROUNDS_KEPT:
                break
        return ends


def _unreadable_reason(content: bytes) -> str:
    try:
        StateDocument(state_json.decode(content))
    except ValueError as error:
        return str(error)
    return ""
