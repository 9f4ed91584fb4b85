"""The one rule of when work starts and ends if processors take exactly their times."""

from __future__ import annotations

from nnstretch.schedule import Disturbances, Interference
from nnstretch.schedule.executors.timetable import ChipClock, Timetable
from nnstretch.soc import Processor

CPU = Processor("cpu", "cpu", 2)
GPU = Processor("gpu", "gpu", 2)
BLOCKING = Processor("dsp", "dsp", 2, blocks_host=True)


def test_work_starts_when_it_is_ready_and_its_processor_is_free() -> None:
    timetable = Timetable()
    assert timetable.book(("cpu",), 5.0, 10.0) == (5.0, 15.0)
    assert timetable.book(("cpu",), 7.0, 10.0) == (15.0, 25.0)
    assert timetable.book(("gpu",), 7.0, 10.0) == (7.0, 17.0)


def test_what_is_ready_earlier_but_booked_later_comes_later() -> None:
    timetable = Timetable()
    timetable.book(("cpu",), 50.0, 10.0)
    assert timetable.book(("cpu",), 0.0, 10.0) == (60.0, 70.0)


def test_processors_that_are_booked_together_start_and_end_together() -> None:
    timetable = Timetable(Disturbances((Interference("gpu", 0.0, 1e9, 0.5),)))
    timetable.book(("cpu",), 0.0, 10.0)
    assert timetable.book(("cpu", "gpu"), 0.0, 10.0) == (10.0, 30.0)
    assert timetable.book(("cpu",), 0.0, 1.0) == (30.0, 31.0)


def test_the_host_enqueues_one_task_after_another() -> None:
    timetable = Timetable(processors=(CPU, GPU))
    first = timetable.enqueue(GPU, 0.0, 4.0, 10.0)
    assert (first.enqueued_us, first.start_us, first.end_us, first.host_us) == (4, 4, 14, 4)
    second = timetable.enqueue(CPU, 0.0, 4.0, 10.0)
    assert (second.enqueued_us, second.start_us, second.host_us) == (8, 8, 8)


def test_a_call_that_blocks_the_host_holds_it_until_the_processor_is_lost() -> None:
    timetable = Timetable(processors=(CPU, BLOCKING))
    assert timetable.enqueue(BLOCKING, 0.0, 1.0, 99.0).host_us == 100.0
    timetable.cut(BLOCKING, 40.0)
    assert timetable.enqueue(CPU, 0.0, 0.0, 10.0).start_us == 40.0


def test_a_dilated_clock_and_the_host_s_agree() -> None:
    clock = ChipClock(origin_s=10.0, dilation=4.0)
    assert clock.us(10.004) == (10.004 - 10.0) * 1e6 / 4.0
    assert clock.at_s(1000.0) == 10.004
