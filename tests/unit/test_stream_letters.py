"""Dead letters of stream lanes: durable, once, in order per key; and when the lane stops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from penstock.core.errors import ConfigError, StaleTermError, StateError, TooManyDeadLettersError
from penstock.core.position import Lsn
from penstock.streams import letter_requests
from penstock.streams.blocked_keys import BEHIND, Why
from penstock.streams.dead_letters import Dead, DeadLetterPolicy, DeadLetters
from penstock.streams.events import CREATE, DELETE, READ, TOMBSTONE, Events
from penstock.streams.letter_file import Letter, LetterFile
from penstock.streams.replays import events_of
from tests.publishing import START, STREAMS, events, term

pytestmark = pytest.mark.unit
ONE, TWO = STREAMS
POISON: Why = ("poison", "is poison", 1)
PASSED = replace(START, batches=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "streams" / "kafka" / "dead_letters.sqlite"


@pytest.fixture
def letters(path: Path) -> Iterator[DeadLetters]:
    with DeadLetters(path, "kafka") as letters:
        letters.begin(term(1), None)
        yield letters


def row(
    op: int, key: bytes | None, value: bytes | None = b"{}"
) -> tuple[int, int, bytes | None, bytes | None]:
    return op, CREATE, key, value


def dead(of: Events, batch: int = 1, why: Why = POISON) -> Dead:
    return Dead(of, [why] * len(of), np.full(len(of), batch), np.arange(len(of)))


def kept(path: Path) -> list[Letter]:
    file = LetterFile(path)
    try:
        return file.letters("true ORDER BY batch, place")
    finally:
        file.close()


class TestKeeping:
    def test_the_whole_event_is_kept(self, letters: DeadLetters, path: Path) -> None:
        written = events(
            ONE, 7, [row(3, b"[1]", b"\x00\xff"), (3, TOMBSTONE, b"[1]", None)], route="shop.one"
        )
        letters.write([dead(written)])
        ((read, numbers),) = events_of(kept(path))
        assert numbers == [1, 2]
        assert (read.stream, read.route, read.chunk) == (ONE, "shop.one", "")
        for name in ("tx", "op", "kind", "xid"):
            assert np.array_equal(getattr(read, name), getattr(written, name))
        assert (read.key, read.value) == (written.key, written.value)
        assert [(letter.code, letter.reason, letter.attempts) for letter in kept(path)] == [POISON, POISON]

    def test_writing_one_twice_changes_nothing(self, letters: DeadLetters, path: Path) -> None:
        letters.write([dead(events(ONE, 7, [row(3, b"[1]")]))])
        letters.write([dead(events(ONE, 7, [row(3, b"[1]", b"other"), row(4, b"[1]")]), batch=2)])
        assert [(letter.op, letter.value) for letter in kept(path)] == [(3, b"{}"), (4, b"{}")]
        assert letters.counts == {("public.one", "poison"): 2}

    def test_a_loaded_row_is_named_by_its_chunk_and_key(self, letters: DeadLetters, path: Path) -> None:
        for op in (0, 5):
            rows = [(op, READ, b"[1]", b"{}"), (op + 1, READ, None, b"{}")]
            letters.write([dead(events(ONE, 0, rows, chunk="load 1"))])
        assert [(letter.op, letter.key) for letter in kept(path)] == [(0, b"[1]"), (1, None), (6, None)]

    def test_a_later_term_shuts_an_earlier_one_out(self, letters: DeadLetters, path: Path) -> None:
        with DeadLetters(path, "kafka") as later:
            later.begin(term(2), None)
            with pytest.raises(StaleTermError):
                letters.write([dead(events(ONE, 7, [row(3, b"[1]")]))])
            with pytest.raises(StaleTermError):
                letters.begin(term(1), None)
        assert kept(path) == []

    def test_terms_of_another_source_are_not_compared(self, letters: DeadLetters, path: Path) -> None:
        with DeadLetters(path, "kafka") as restored:
            restored.begin(replace(term(0), system_id="another"), None)
            restored.write([dead(events(ONE, 7, [row(3, b"[1]")]))])
            with pytest.raises(StaleTermError):
                letters.write([dead(events(ONE, 8, [row(3, b"[1]")]))])

    def test_a_file_of_another_version_is_left_alone(self, path: Path) -> None:
        file = LetterFile(path)
        file.execute("PRAGMA user_version = 99")
        file.close()
        with pytest.raises(StateError, match="format 99"):
            LetterFile(path)


class TestBlocking:
    def test_later_events_of_a_dead_key_join_it_and_others_do_not(self, letters: DeadLetters) -> None:
        first = events(ONE, 7, [row(0, b"[1]"), row(1, b"[2]"), row(2, b"[1]"), row(3, None)])
        assert letters.blocked.fall(first, {0: POISON}).keys() == {0, 2}
        assert letters.sift(events(ONE, 8, [row(0, b"[2]"), row(1, b"[1]"), row(2, None)])).keys() == {1}
        assert letters.sift(events(TWO, 8, [row(1, b"[1]")])) == {}

    def test_events_before_a_refused_one_are_not_behind_it(self, letters: DeadLetters) -> None:
        rows = [row(0, b"[1]"), row(1, b"[1]"), row(2, b"[1]")]
        fallen = letters.sift(events(ONE, 7, rows, refused={1: ("unencodable", "NaN")}))
        assert [(number, why[0]) for number, why in fallen.items()] == [(1, "unencodable"), (2, BEHIND)]

    def test_blocked_keys_are_known_again_after_a_start(self, letters: DeadLetters, path: Path) -> None:
        letters.write([dead(events(ONE, 7, [row(0, b"[1]"), row(1, None)]))])
        with DeadLetters(path, "kafka") as again:
            again.begin(term(2), PASSED)
            assert again.sift(events(ONE, 8, [row(0, b"[1]"), row(1, None)])).keys() == {0}
            assert len(again.blocked) == 1

    def test_with_order_skip_later_events_go_on(self, path: Path) -> None:
        with DeadLetters(path, "kafka", DeadLetterPolicy("skip")) as letters:
            letters.begin(term(1), None)
            first = events(ONE, 7, [row(0, b"[1]"), row(1, b"[1]")])
            assert letters.blocked.fall(first, {0: POISON}).keys() == {0}
            assert letters.sift(events(ONE, 8, [row(0, b"[1]")])) == {}


class TestKeysOfAnotherForm:
    """As another `format` or mask writes them: they are other bytes."""

    @pytest.fixture
    def written(self, path: Path) -> Path:
        with DeadLetters(path, "kafka", key_form=lambda stream: f"{stream} as json") as letters:
            letters.begin(term(1), None)
            letters.write([dead(events(ONE, 7, [row(0, b"[1]")])), dead(events(TWO, 7, [row(1, None)]))])
        return path

    def begin(
        self,
        path: Path,
        form: str,
        order: Literal["block_key", "skip"] = "block_key",
        then_drop: bool = False,
    ) -> None:
        with DeadLetters(
            path, "kafka", DeadLetterPolicy(order), lambda stream: f"{stream} as {form}"
        ) as letters:
            letters.begin(term(2), PASSED)
            if then_drop:
                file = LetterFile(path)
                letter_requests.ask(file, "drop")
                file.close()
                assert letters.replays.next(1, 1) is None

    def test_a_lane_does_not_begin_while_letters_are_there(self, written: Path) -> None:
        with pytest.raises(ConfigError, match=r"while public\.one has dead letters") as refused:
            self.begin(written, "avro")
        assert "penstock dlq replay --lane kafka" in refused.value.remedy
        assert len(kept(written)) == 2
        self.begin(written, "json", then_drop=True)
        self.begin(written, "avro")

    def test_letters_that_nobody_can_send_any_more_are_dropped_as_it_begins(self, written: Path) -> None:
        file = LetterFile(written)
        letter_requests.ask(file, "drop", stream="public.two")
        with pytest.raises(ConfigError, match=r"public\.one has dead letters") as refused:
            self.begin(written, "avro")
        assert "penstock dlq drop --lane kafka" in refused.value.remedy
        asked = letter_requests.ask(file, "drop", stream="public.one")
        self.begin(written, "avro")
        assert (kept(written), letter_requests.request(file, asked).done) == ([], 1)
        file.close()

    def test_without_an_order_to_keep_it_does(self, written: Path) -> None:
        self.begin(written, "avro", "skip")

    def test_letters_of_which_it_is_not_known_are_gone_on_with(self, path: Path) -> None:
        with DeadLetters(path, "kafka") as letters:
            letters.begin(term(1), None)
            letters.write([dead(events(ONE, 7, [row(0, b"[1]")]))])
        file = LetterFile(path)
        file.execute("DELETE FROM facts WHERE name = 'keys of public.one'")
        file.close()
        self.begin(path, "avro")


class TestTakingBack:
    def test_letters_that_the_position_never_passed_come_again(
        self, letters: DeadLetters, path: Path
    ) -> None:
        later = events(ONE, 107, [row(0, b"[1]"), row(1, b"[1]")])
        letters.write([dead(events(ONE, 7, [row(3, b"[2]")]))])
        letters.write([Dead(later, [POISON, (BEHIND, "", 0)], np.full(2, 2), np.arange(2))])
        with DeadLetters(path, "kafka") as again:
            assert again.begin(term(2), PASSED) == 1
            assert [letter.tx for letter in kept(path)] == [7]
            assert again.sift(later) == {
                0: POISON,
                1: (BEHIND, "An earlier event of its key is a dead letter.", 0),
            }

    def test_a_target_without_a_standing_undoes_no_letter(self, letters: DeadLetters, path: Path) -> None:
        letters.write([dead(events(ONE, 7, [row(3, b"[2]")]), batch=4)])
        with DeadLetters(path, "kafka") as again:
            assert again.begin(term(2), None) == 4
        assert len(kept(path)) == 1


class TestRewinding:
    def test_letters_that_come_again_are_not_kept_before_earlier_ones(
        self, letters: DeadLetters, path: Path
    ) -> None:
        of_load = events(ONE, 0, [(0, READ, b"[2]", b"{}")], chunk="load 1")
        letters.write([dead(events(ONE, 150, [row(0, b"[1]")])), dead(events(ONE, 90, [row(0, b"[3]")]))])
        letters.write([dead(of_load)])
        letters.follow(START)
        assert sorted(letter.key or b"" for letter in kept(path)) == [b"[2]", b"[3]"]
        assert letters.counts == {("public.one", "poison"): 2}
        assert letters.sift(events(ONE, 110, [row(0, b"[1]")])) == {}

    def test_letters_of_a_stream_that_is_ahead_stay_up_to_its_point(
        self, letters: DeadLetters, path: Path
    ) -> None:
        letters.write([dead(events(ONE, tx, [row(0, b"[1]")])) for tx in (150, 199, 200)])
        letters.follow(replace(START, loads={"public.one": {"point": str(Lsn(200))}}))
        assert [letter.tx for letter in kept(path)] == [150, 199]

    def test_letters_of_another_source_stay(self, letters: DeadLetters, path: Path) -> None:
        letters.write([dead(events(ONE, 150, [row(0, b"[1]")]))])
        with DeadLetters(path, "kafka") as restored:
            restored.begin(replace(term(1), system_id="another"), None)
            restored.write([dead(events(ONE, 150, [row(0, b"[1]")]), batch=2)])
            assert len(kept(path)) == 2, "the same name, of another server"
            restored.follow(START)
        assert [letter.batch for letter in kept(path)] == [1]


class TestStopping:
    def test_too_large_a_share_of_refused_events_stops_the_lane(self, path: Path) -> None:
        with DeadLetters(path, "kafka", DeadLetterPolicy(max_share=0.001)) as letters:
            letters.begin(term(1), None)
            letters.saw(1000)
            letters.write([dead(events(ONE, 7, [row(op, None) for op in range(10)]))])
            with pytest.raises(TooManyDeadLettersError, match=r"more than 0\.10% of the last") as raised:
                letters.write([dead(events(ONE, 8, [row(0, None)]))])
            assert "lanes.kafka.dead_letter.max_share" in raised.value.remedy
            assert len(kept(path)) == 10, "nothing was written"
            letters.saw(10_000)
            letters.write([dead(events(ONE, 8, [row(0, None)]))])

    def test_starting_again_forgets_no_refused_events(self, path: Path) -> None:
        policy = DeadLetterPolicy(max_share=0.001)
        with DeadLetters(path, "kafka", policy) as letters:
            letters.begin(term(1), None)
            letters.write([dead(events(ONE, 7, [row(op, None) for op in range(10)]))])
        with DeadLetters(path, "kafka", policy) as letters:
            letters.begin(term(2), PASSED)
            with pytest.raises(TooManyDeadLettersError):
                letters.write([dead(events(ONE, 8, [row(0, None)]))])

    def test_events_that_come_again_are_not_counted_again(self, path: Path) -> None:
        policy, refused = (
            DeadLetterPolicy(max_share=0.001),
            events(ONE, 107, [row(op, None) for op in range(10)]),
        )
        with DeadLetters(path, "kafka", policy) as letters:
            letters.begin(term(1), None)
            letters.write([dead(refused, batch=2)])
        with DeadLetters(path, "kafka", policy) as letters:
            letters.begin(term(2), PASSED)
            letters.write([dead(refused, batch=2)])
            assert len(kept(path)) == 10

    def test_events_behind_others_are_no_part_of_the_share(self, path: Path) -> None:
        with DeadLetters(path, "kafka", DeadLetterPolicy(max_share=0.001)) as letters:
            letters.begin(term(1), None)
            behind = dead(events(ONE, 7, [row(op, b"[1]") for op in range(100)]), why=(BEHIND, "", 0))
            letters.write([behind])

    def test_too_many_letters_stop_the_lane(self, path: Path) -> None:
        with DeadLetters(path, "kafka", DeadLetterPolicy(max_count=2)) as letters:
            letters.begin(term(1), None)
            letters.write([dead(events(ONE, 7, [row(0, b"[1]"), row(1, b"[1]")]))])
            with pytest.raises(TooManyDeadLettersError, match="more than 2 dead letters"):
                letters.write([dead(events(ONE, 8, [row(0, b"[1]")]))])

    def test_what_joins_a_blocked_key_stops_the_lane_by_its_bytes_alone(self, path: Path) -> None:
        policy = DeadLetterPolicy(max_count=1, max_bytes=400_000)

        def behind(tx: int) -> Dead:
            rows = [row(op, b"[1]", b" " * 1000) for op in range(10)]
            return dead(events(ONE, tx, rows), why=(BEHIND, "", 0))

        with DeadLetters(path, "kafka", policy) as letters:
            letters.begin(term(1), None)
            letters.write([dead(events(ONE, 7, [row(0, b"[1]")]))])
            with pytest.raises(TooManyDeadLettersError, match="more than 400,000 bytes") as raised:
                list(map(letters.write, ([behind(tx)] for tx in range(8, 100))))
            assert "lanes.kafka.dead_letter.max_bytes" in raised.value.remedy
            assert 300_000 < path.stat().st_size <= 400_000, "it is measured before it is written"
        with DeadLetters(path, "kafka", policy) as letters:
            letters.begin(term(2), PASSED)
            with pytest.raises(TooManyDeadLettersError):
                letters.write([behind(100)])
            file = LetterFile(path)
            letter_requests.ask(file, "drop")
            file.close()
            assert letters.replays.next(1, 1) is None
            letters.write([behind(100)])


class TestReplaying:
    @pytest.fixture
    def file(self, path: Path) -> Iterator[LetterFile]:
        file = LetterFile(path)
        yield file
        file.close()

    def test_a_key_is_free_when_its_last_letter_is_sent(self, letters: DeadLetters, file: LetterFile) -> None:
        letters.write([dead(events(ONE, 7, [row(0, b"[1]"), row(1, b"[1]")]))])
        letters.blocked.block(ONE, [b"[1]"])
        number = letter_requests.ask(file, "replay")
        portion = letters.replays.next(1, 1)
        assert portion is not None
        assert [letter.op for letter in portion.letters] == [0, 1]
        letters.write([dead(events(ONE, 8, [row(0, b"[1]")]))])  # it came meanwhile
        letters.replays.done(portion)
        assert letters.sift(events(ONE, 9, [row(0, b"[1]")])), "its last letter is not sent yet"
        portion = letters.replays.next(1, 2)
        assert portion is not None
        assert [letter.tx for letter in portion.letters] == [8]
        letters.replays.done(portion)
        assert letters.replays.next(1, 3) is None
        assert not letters.sift(events(ONE, 9, [row(0, b"[1]")]))
        asked = letter_requests.request(file, number)
        assert (asked.finished_at is not None, asked.done, asked.kept) == (True, 3, 0)

    def test_what_is_refused_again_stays_with_all_behind_it(
        self, letters: DeadLetters, file: LetterFile, path: Path
    ) -> None:
        letters.write([dead(events(ONE, 7, [row(0, b"[1]"), row(1, b"[2]"), row(2, b"[1]")]))])
        number = letter_requests.ask(file, "replay")
        portion = letters.replays.next(1, 1)
        assert portion is not None
        rest = letters.replays.keep(portion, {1: ("large", "is too large", 1)})
        assert [letter.op for letter in rest.letters] == [1]
        letters.replays.done(rest)
        assert letters.replays.next(1, 2) is None
        assert [(letter.op, letter.code, letter.attempts) for letter in kept(path)] == [
            (0, "large", 2),
            (2, "poison", 1),
        ]
        assert letters.counts == {("public.one", "poison"): 1, ("public.one", "large"): 1}
        asked = letter_requests.request(file, number)
        assert (asked.finished_at is not None, asked.done, asked.kept) == (True, 1, 2)

    def test_a_letter_whose_event_may_come_again_is_not_replayed(
        self, letters: DeadLetters, file: LetterFile
    ) -> None:
        letters.write([dead(events(ONE, 7, [row(0, b"[1]"), row(1, None)]), batch=2)])
        letter_requests.ask(file, "replay")
        letter_requests.ask(file, "drop")
        assert letters.replays.next(1, 1) is None
        assert file.count("true") == 2
        assert len(letter_requests.waiting(file)) == 2

    def test_one_letter_is_replayed_with_its_key(self, letters: DeadLetters, file: LetterFile) -> None:
        letters.write([dead(events(ONE, 7, [row(0, b"[1]"), row(1, b"[2]"), row(2, b"[1]"), row(3, None)]))])
        letter_requests.ask(file, "replay", letter=3)
        portion = letters.replays.next(1, 1)
        assert portion is not None
        assert [letter.op for letter in portion.letters] == [0, 2]

    @pytest.mark.parametrize("letter", [None, 1])
    def test_a_replay_that_a_crash_cuts_goes_on_until_its_keys_are_free(
        self, letters: DeadLetters, file: LetterFile, path: Path, letter: int | None
    ) -> None:
        letters.write([dead(events(ONE, 7, [row(0, b"[1]")]))])
        number = letter_requests.ask(file, "replay", letter=letter)
        portion = letters.replays.next(1, 1)
        assert portion is not None
        joined = dead(events(ONE, 8, [row(0, b"[1]")]), batch=2, why=(BEHIND, "", 0))
        letters.write([joined, dead(events(ONE, 8, [row(1, b"[2]")]), batch=2)])
        letters.replays.done(portion)
        with DeadLetters(path, "kafka") as again:
            again.begin(term(2), replace(START, batches=2, replays=1))
            portion = again.replays.next(2, 2)
            assert portion is not None
            assert [(each.tx, each.key) for each in portion.letters] == [(8, b"[1]")]
            again.replays.done(portion)
            assert again.replays.next(2, 3) is None
            assert letter_requests.request(file, number).finished_at is not None
            assert letter_requests.noted_keys(file, number) is None
            assert again.blocked.rows(events(ONE, 9, [row(0, b"[1]"), row(1, b"[2]")])).tolist() == [1]

    def test_a_replay_that_waits_drains_its_keys_whatever_else_is_asked_for(
        self, letters: DeadLetters, file: LetterFile
    ) -> None:
        """It goes on after another one, which has begun since."""
        letters.write([dead(events(ONE, 7, [row(0, b"[1]"), row(1, b"[2]")]))])
        first = letter_requests.ask(file, "replay", letter=1)
        portion = letters.replays.next(1, 1)
        assert portion is not None
        letters.write([dead(events(ONE, 8, [row(0, b"[1]")]), batch=2, why=(BEHIND, "", 0))])
        letters.replays.done(portion)
        letter_requests.ask(file, "replay", letter=2)
        sent = []
        for passed in (1, 2):
            portion = letters.replays.next(passed, 1 + passed)
            assert portion is not None
            sent += [each.key for each in portion.letters]
            letters.replays.done(portion)
        assert sent == [b"[2]", b"[1]"]
        assert letters.replays.next(2, 4) is None
        assert letter_requests.request(file, first).finished_at is not None

    def test_no_more_of_a_key_is_read_than_goes_at_once(
        self, letters: DeadLetters, file: LetterFile, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("penstock.streams.replays._BYTES_MAX", 1000)
        rows = [row(op, b"[1]", b" " * (5000 if op == 7 else 300)) for op in range(10)]
        letters.write([dead(events(ONE, 7, rows))])
        letter_requests.ask(file, "replay")
        read: list[list[int]] = []
        fetch = LetterFile.letters

        def watched(self: LetterFile, *arguments: Any) -> list[Letter]:
            found = fetch(self, *arguments)
            read.append([letter.op for letter in found])
            return found

        monkeypatch.setattr(LetterFile, "letters", watched)
        sent: list[list[int]] = []
        while (portion := letters.replays.next(1, len(sent) + 1)) is not None:
            sent.append([letter.op for letter in portion.letters])
            letters.replays.done(portion)
        assert sent == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert [ops for ops in read if ops] == sent, "what is read is sent"

    def test_what_was_never_encoded_is_not_sent(self, letters: DeadLetters, file: LetterFile) -> None:
        rows = events(ONE, 7, [row(0, b"[1]"), row(1, b"[1]"), row(2, None)])
        letters.write([dead(rows, why=("unencodable", "NaN", 0))])
        number = letter_requests.ask(file, "replay")
        assert letters.replays.next(1, 1) is None
        assert letter_requests.request(file, number).finished_at is not None
        assert file.count("true") == 3

    def test_dropping_frees_the_keys_of_a_stream(self, letters: DeadLetters, file: LetterFile) -> None:
        letters.write([dead(events(of, 7, [row(0, b"[1]")])) for of in STREAMS])
        for of in STREAMS:
            letters.blocked.block(of, [b"[1]"])
        letter_requests.ask(file, "drop", stream=str(ONE))
        assert letters.replays.next(1, 1) is None
        assert letters.sift(events(ONE, 8, [row(0, b"[1]")])) == {}
        assert letters.sift(events(TWO, 8, [row(0, b"[1]")])).keys() == {0}

    @pytest.mark.parametrize(("held", "left"), [(0, 2), (1, 0)])
    def test_after_a_crash_the_standing_tells_whether_letters_were_sent(
        self, letters: DeadLetters, file: LetterFile, path: Path, held: int, left: int
    ) -> None:
        letters.write([dead(events(ONE, 7, [row(0, b"[1]"), (1, DELETE, b"[1]", b"{}")]))])
        letter_requests.ask(file, "replay")
        assert letters.replays.next(1, 1) is not None
        with DeadLetters(path, "kafka") as again:
            again.begin(term(2), replace(PASSED, replays=held))
            assert file.count("replay = 0") == left
            assert len(again.blocked) == (1 if left else 0)

    def test_no_mark_outlives_the_letters(self, letters: DeadLetters, file: LetterFile, path: Path) -> None:
        """Taken back, letters again, and dropped by somebody: any instance may go on."""
        fallen = events(ONE, 107, [row(0, b"[1]")])
        letters.write([dead(fallen)])
        with DeadLetters(path, "kafka") as again:
            again.begin(term(2), START)
            assert again.mark, "a bucket that is ahead may have passed it"
            assert again.sift(fallen).keys() == {0}
            again.write([dead(fallen)])
            assert again.mark
            letter_requests.ask(file, "drop", stream=str(ONE))
            assert again.replays.next(1, 1) is None
            assert again.mark == ""

    def test_a_row_of_a_load_that_was_read_anew_is_forgotten(self, letters: DeadLetters, path: Path) -> None:
        letters.write([dead(events(ONE, 0, [(0, READ, b"[1]", b"{}")], chunk="load 1"))])
        with DeadLetters(path, "kafka") as again:
            again.begin(term(2), START)
            assert again.mark == ""
            assert again.sift(events(ONE, 0, [(0, READ, b"[1]", b"{}")], chunk="load 1")) == {}
