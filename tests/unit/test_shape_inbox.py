from __future__ import annotations

import threading
from concurrent.futures import CancelledError

import pytest

from penstock.shapes.engine.inbox import Inbox


def test_work_is_done_in_the_order_in_which_it_was_asked_for() -> None:
    inbox, done = Inbox(100), list[int]()
    first = inbox.submit(lambda: done.append(1))
    assert inbox.put(lambda: done.append(2), 10)
    failing = inbox.submit(lambda: 1 // 0)

    for task in inbox.take(0):
        task.run()

    assert done == [1, 2]
    assert first.result(0) is None
    with pytest.raises(ZeroDivisionError):
        failing.result(0)


def test_changes_wait_for_room_and_requests_do_not() -> None:
    inbox = Inbox(100)
    assert inbox.put(lambda: None, 101)
    entered, put = threading.Event(), threading.Event()

    def put_another() -> None:
        entered.set()
        inbox.put(lambda: None, 1)
        put.set()

    thread = threading.Thread(target=put_another)
    thread.start()
    entered.wait()
    inbox.submit(lambda: None)
    assert not put.is_set()

    assert len(inbox.take(0)) == 2
    assert put.wait(120)
    thread.join()
    assert len(inbox.take(0)) == 1


def test_nobody_waits_for_an_inbox_that_is_closed() -> None:
    inbox = Inbox(0)
    inbox.put(lambda: None, 1)
    refused = list[bool]()
    thread = threading.Thread(target=lambda: refused.append(inbox.put(lambda: None, 1)))
    thread.start()
    inbox.close()
    thread.join(120)

    assert refused == [False]
    with pytest.raises(CancelledError):
        inbox.submit(lambda: None).result(0)


def test_what_was_asked_for_before_the_end_can_still_be_done_or_cancelled() -> None:
    inbox = Inbox(0)
    done, cancelled = inbox.submit(lambda: 1), inbox.submit(lambda: 2)
    inbox.close()

    first, second = inbox.take(0)
    first.run()
    second.cancel()

    assert done.result(0) == 1
    assert cancelled.cancelled()
    assert inbox.take(10) == []
