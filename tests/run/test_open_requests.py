"""Room for one more request goes to somebody who waits for it, whoever is interrupted meanwhile."""

from __future__ import annotations

import threading
import time

from nnstretch.run.requests.open_requests import OpenRequests, ServerSide
from nnstretch.schedule.executors.callback_thread import CallbackThread
from nnstretch.schedule.executors.owner_process import OwnerProcess
from nnstretch.schedule.timeout import Timeout

WAIT_S = 20.0


class InterruptedOnce(OpenRequests):
    """Requests of which the thread `first` gets a Ctrl-C as soon as it is woken."""

    looks = 0

    def _has_room_or_end(self) -> bool:
        if threading.current_thread().name == "first":
            self.looks += 1
            if self.looks > 1:
                raise KeyboardInterrupt
        return super()._has_room_or_end()

    def asleep(self) -> int:
        return len(self._room.asleep)


def test_a_second_waiter_gets_the_room_of_one_that_is_interrupted() -> None:
    side = ServerSide(OwnerProcess("server"), lambda _: None, CallbackThread(), ())
    requests = InterruptedOnce(side, 1)
    assert requests.add({}, 0.0) is not None
    said: dict[str, str] = {}

    def wait_for_room(name: str) -> None:
        try:
            requests.wait_for_room(Timeout(WAIT_S))
            said[name] = "room"
        except KeyboardInterrupt:
            said[name] = "interrupted"

    threads = []
    for count, name in enumerate(("first", "second"), 1):
        threads.append(threading.Thread(target=wait_for_room, args=(name,), name=name))
        threads[-1].start()
        give_up_s = time.monotonic() + WAIT_S
        while requests.asleep() < count:
            assert time.monotonic() < give_up_s
            time.sleep(0.001)
    began_s = time.monotonic()
    requests.end(0, lambda entry: entry.values, None)  # one place: it rings the first of them
    for thread in threads:
        thread.join(WAIT_S)
    assert said == {"first": "interrupted", "second": "room"}
    assert time.monotonic() - began_s < WAIT_S / 2, "the second waited until its time was over"
