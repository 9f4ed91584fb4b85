"""Threads that sleep until something moves: woken always, and rung no more often than they look."""

from __future__ import annotations

import queue
from functools import partial
from threading import Thread

from nnstretch.schedule.executors.wakeup import Wakeup


def test_who_was_rung_is_not_rung_again_until_it_looks() -> None:
    wakeup, bell = Wakeup(), queue.SimpleQueue[None]()
    wakeup.asleep.append(bell)
    for _ in range(5):
        wakeup.ring()
    assert bell.qsize() == 1


def test_no_thread_of_several_sleeps_on_when_a_counter_has_moved() -> None:
    wakeup, counter, turns = Wakeup(), [0], 2000
    seen = [0] * 4

    def has_news(number: int) -> bool:
        return counter[0] >= min(seen[number] + 1 + number % 2, turns)

    def follow(number: int) -> None:
        while seen[number] < turns:
            assert wakeup.wait(partial(has_news, number), timeout_s=20)
            seen[number] = counter[0]
            wakeup.ring()

    threads = [Thread(target=follow, args=(number,), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(turns):
        counter[0] += 1
        wakeup.ring()
        wakeup.wait(lambda: max(seen) >= counter[0], timeout_s=20)
    for thread in threads:
        thread.join(20)
    assert seen == [turns] * 4
    assert not wakeup.asleep
