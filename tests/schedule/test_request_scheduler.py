"""Requests under every kind of trouble: exactly one answer or one error each, on both clocks."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.phone import PHONE

from nnstretch.errors import (
    BadInput,
    Cancelled,
    DeadlineMissed,
    NnstretchError,
    ProcessorFailed,
    Stuck,
)
from nnstretch.schedule import (
    Disturbances,
    Interference,
    Outage,
    Request,
    RequestScheduler,
    StaticPlacement,
    ThreadExecutor,
    VirtualExecutor,
    run_tasks,
)
from nnstretch.task import Task
from nnstretch.trace import Span


def placed() -> StaticPlacement:
    return StaticPlacement(("cpu", "dsp", "gpu"))


TIMES_US = {
    (sub, p.name): 10.0 * (k + 1)
    for sub in ("stem", "left", "right", "merge")
    for k, p in enumerate(PHONE)
}


def branched(number: int, deadline_us: float = float("inf")) -> Request:
    """A stem, two branches on accelerators, and where they meet."""

    def task(sub: str, processor: str, *needs: str) -> Task:
        return Task(
            f"{sub}#{number}",
            sub,
            frozenset(f"{need}#{number}" for need in needs),
            processor,
            number,
        )

    tasks = (
        task("stem", "cpu"),
        task("left", "dsp", "stem"),
        task("right", "gpu", "stem"),
        task("merge", "cpu", "left", "right"),
    )
    return Request(number, tasks, deadline_us)


class Bell:
    """Counts answers, and keeps what ran."""

    def __init__(self) -> None:
        self.answers: list[Request] = []
        self.spans: list[Span] = []

    @property
    def by_request(self) -> dict[int, Request]:
        assert max(Counter(answer.number for answer in self.answers).values(), default=1) == 1, (
            "one answer each"
        )
        return {answer.number: answer for answer in self.answers}


def service_on(clock: VirtualExecutor | ThreadExecutor, bell: Bell) -> RequestScheduler:
    return RequestScheduler(
        PHONE, placed(), clock, bell.answers.append, TIMES_US, bell.spans.append
    )


def serve(
    requests: list[Request],
    disturbances: Disturbances = Disturbances(),  # noqa: B008
    work: object = None,
) -> tuple[Bell, RequestScheduler]:
    bell = Bell()
    clock = VirtualExecutor(PHONE, TIMES_US, work or (lambda task: None), disturbances)  # type: ignore[arg-type]
    service = service_on(clock, bell)
    for request in requests:
        service.submit(request)
    while service.step() is not None:
        pass
    return bell, service


def test_requests_share_processors_and_each_is_answered() -> None:
    bell, service = serve([branched(n) for n in range(5)])
    assert sorted(bell.by_request) == [0, 1, 2, 3, 4]
    assert all(answer.error is None and answer.replaced == 0 for answer in bell.answers)
    assert len(service) == 0
    assert serve([branched(0)])[0].by_request[0].latency_us == 50, (
        "stem 10, the slower branch 30, merge 10"
    )
    assert max(a.ended_us for a in bell.answers) < 5 * 50, "they overlap"


def test_work_of_a_lost_processor_runs_elsewhere() -> None:
    bell, service = serve(
        [branched(n) for n in range(4)], Disturbances(fails=(Outage("gpu", 25.0),))
    )
    assert all(answer.error is None for answer in bell.answers)
    assert [p.name for p in service.alive] == ["cpu", "dsp"]
    assert sum(answer.replaced for answer in bell.answers) == 4, (
        "every right branch, the one that was interrupted included"
    )
    assert Counter(span.task.name for span in bell.spans) == Counter(
        task.name for n in range(4) for task in branched(n).tasks
    )
    assert all(span.end_us <= 25.0 for span in bell.spans if span.processor == "gpu")


def test_a_processor_that_comes_back_is_used_again() -> None:
    bell, service = serve(
        [branched(n) for n in range(12)], Disturbances(fails=(Outage("gpu", 25.0, 120.0),))
    )
    assert all(answer.error is None for answer in bell.answers)
    assert {p.name for p in service.alive} == {"cpu", "gpu", "dsp"}
    assert 0 < sum(answer.replaced for answer in bell.answers) < 12
    assert any(span.start_us >= 120.0 for span in bell.spans if span.processor == "gpu")


def test_an_idle_processor_that_is_lost_is_noticed_when_it_is_needed() -> None:
    bell, _ = serve([branched(0)], Disturbances(fails=(Outage("gpu", 0.0), Outage("dsp", 0.0))))
    assert bell.by_request[0].error is None
    assert bell.by_request[0].replaced == 2
    assert bell.by_request[0].latency_us == 40, "all on the CPU"


def test_without_processors_every_request_ends_with_the_reason() -> None:
    bell, service = serve(
        [branched(n) for n in range(3)],
        Disturbances(fails=tuple(Outage(p.name, 15.0) for p in PHONE)),
    )
    assert {type(answer.error) for answer in bell.answers} == {ProcessorFailed}
    assert sorted(bell.by_request) == [0, 1, 2]
    service.submit(branched(7))
    assert isinstance(bell.by_request[7].error, ProcessorFailed)


def test_an_error_reaches_its_own_request_alone() -> None:
    def work(task: Task) -> None:
        if task.name == "left#1":
            raise BadInput("left branch, request 1, torn")

    bell, _ = serve([branched(n) for n in range(3)], work=work)
    assert {n: str(answer.error) for n, answer in bell.by_request.items() if answer.error} == {
        1: "left branch, request 1, torn"
    }


def test_what_ends_at_its_deadline_is_answered() -> None:
    alone = Bell()
    clock = VirtualExecutor(PHONE, TIMES_US)
    service = service_on(clock, alone)
    service.submit(branched(0))
    while service.step() is not None:
        pass
    end_us = alone.by_request[0].ended_us
    for deadline_us, is_answered in ((end_us, True), (end_us - 0.01, False)):
        bell = Bell()
        service = service_on(VirtualExecutor(PHONE, TIMES_US), bell)
        service.submit(branched(0, deadline_us=deadline_us))
        while service.step() is not None:
            pass
        assert (bell.by_request[0].error is None) == is_answered


def test_on_threads_what_is_heard_behind_its_deadline_is_missed() -> None:
    answers: list[Request] = []
    with ThreadExecutor(PHONE, lambda _: time.sleep(0.03)) as clock:
        service = RequestScheduler(PHONE, placed(), clock, answers.append)
        service.submit(branched(1, clock.now_us + 10_000))
        service.dispatch()
        time.sleep(0.1)  # whoever drives it is busy, and the stem has ended when it asks again
        while not answers:
            service.step()
        assert not service.loop.is_open("left#1")
    assert isinstance(answers[0].error, DeadlineMissed)


def test_deadlines_and_cancellation_end_a_request_at_once() -> None:
    bell = Bell()
    clock = VirtualExecutor(PHONE, TIMES_US)
    service = service_on(clock, bell)
    service.submit(branched(0, deadline_us=35.0))
    service.submit(branched(1))
    service.submit(branched(2, deadline_us=1000.0))
    assert service.cancel(1)
    assert not service.cancel(1)
    assert not service.cancel(9)
    while service.step() is not None:
        pass
    ends = bell.by_request
    assert isinstance(ends[0].error, DeadlineMissed)
    assert ends[0].ended_us == pytest.approx(35.0)
    assert isinstance(ends[1].error, Cancelled)
    assert ends[2].error is None
    assert not any(span.task.name.endswith("#1") for span in bell.spans)
    with pytest.raises(Stuck, match="request 3 is open already"):
        [service.submit(branched(3)) for _ in range(2)]
    service.close()
    assert isinstance(bell.by_request[3].error, Cancelled)


def test_others_work_stretches_ours() -> None:
    half = Disturbances(busy=(Interference("cpu", 5.0, 15.0),))
    assert half.end_us("cpu", 0.0, 5.0) == 5.0
    assert half.end_us("cpu", 0.0, 10.0) == 15.0
    assert half.end_us("cpu", 0.0, 20.0) == 25.0
    assert half.end_us("cpu", 10.0, 1.0) == 12.0
    assert half.end_us("dsp", 0.0, 20.0) == 20.0
    spells = Disturbances(
        fails=(Outage("gpu", 10.0, 20.0), Outage("gpu", 15.0, 30.0), Outage("gpu", 50.0))
    )
    assert [spells.lost_us("gpu", at) for at in (0.0, 10.0, 29.0, 30.0, 60.0)] == [
        10.0,
        10.0,
        29.0,
        50.0,
        60.0,
    ]
    assert not spells.is_away("gpu", 30.0)
    assert spells.lost_us("cpu", 0.0) == float("inf")
    both = Disturbances(busy=(Interference("cpu", 0.0, 10.0), Interference("cpu", 5.0, 10.0, 0.2)))
    assert both.end_us("cpu", 0.0, 3.5) == 15.0 - 5.0 + 0.5, (
        "2.5 of work until 5, 0.5 until 10, 0.5 behind"
    )
    tasks = branched(0).tasks
    trace = run_tasks(
        tasks,
        placed(),
        VirtualExecutor(
            PHONE,
            TIMES_US,
            disturbances=Disturbances(busy=(Interference("gpu", 0.0, 1e6, share=0.25),)),
        ),
    )
    assert trace.makespan_us == 10 + 120 + 10
    with pytest.raises(BadInput, match="busy from 5 to 5 us"):
        Interference("cpu", 5.0, 5.0)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_whatever_happens_each_request_has_exactly_one_end(data: st.DataObject) -> None:
    times = st.floats(0, 400)
    forever = st.just(float("inf"))
    fails = tuple(
        Outage(p.name, at := data.draw(times), at + data.draw(st.floats(0, 100) | forever))
        for p in PHONE
        if data.draw(st.booleans())
    )
    busy = tuple(
        Interference(p.name, start, start + data.draw(st.floats(1, 200)))
        for p in PHONE
        if (start := data.draw(times)) < 300
    )
    bad = data.draw(st.sets(st.integers(0, 11)))

    def work(task: Task) -> None:
        if task.request in bad and task.subgraph == "left":
            raise BadInput("torn")

    bell = Bell()
    clock = VirtualExecutor(PHONE, TIMES_US, work, Disturbances(busy, fails))
    service = service_on(clock, bell)
    for number in range(12):
        clock.set_timer(data.draw(times), number)
    cancelled = {n: data.draw(times) for n in data.draw(st.sets(st.integers(0, 11)))}
    for number, at_us in cancelled.items():
        clock.set_timer(at_us, ("cancel", number))
    while (what := service.step()) is not None:
        if isinstance(what, tuple):
            service.cancel(what[1])
        elif what is not True:
            late = data.draw(st.sampled_from([float("inf"), clock.now_us + 60]))
            service.submit(branched(what, late))
    ends = bell.by_request
    assert sorted(ends) == list(range(12)), "none is lost"
    for number, answer in ends.items():
        mine = [span for span in bell.spans if span.task.name.endswith(f"#{number}")]
        assert len({span.task.name for span in mine}) == len(mine), "no task ends twice"
        if answer.error is None:
            assert len(mine) == 4
            assert answer.ended_us == max(span.end_us for span in mine)
        else:
            assert isinstance(answer.error, NnstretchError)
    for fail in fails:
        mine = [
            span
            for span in bell.spans
            if span.processor == fail.processor and fail.at_us < fail.until_us
        ]
        assert not [
            span
            for span in mine
            if span.start_us < fail.at_us < span.end_us
            or fail.at_us < span.start_us < fail.until_us
        ]


def test_real_threads_answer_clients_of_their_own_threads() -> None:
    """Clients call from threads of their own; one processor is lost on the way."""
    bell, chance, total = Bell(), random.Random(1), 60
    lock, arrivals = threading.Lock(), iter(range(total))
    done = threading.Event()
    times_us = {key: us * 5 for key, us in TIMES_US.items()}
    with ThreadExecutor(
        PHONE,
        lambda task: None,
        times_us,
        disturbances=Disturbances(fails=(Outage("gpu", 9_000.0, 15_000.0),)),
    ) as clock:

        def answered(answer: Request) -> None:
            bell.answers.append(answer)
            if len(bell.answers) == total:
                done.set()
                clock.call("over")

        service = RequestScheduler(PHONE, placed(), clock, answered, times_us, bell.spans.append)
        clock.listen()

        def client() -> None:
            while True:
                with lock:
                    number = next(arrivals, None)
                if number is None:
                    return
                clock.call(("arrive", number))
                if chance.random() < 0.2:
                    clock.call(("cancel", number))

        clients = [threading.Thread(target=client) for _ in range(4)]
        for one in clients:
            one.start()
        while (what := service.step()) != "over":
            if isinstance(what, tuple):
                verb, number = what
                service.submit(branched(number)) if verb == "arrive" else service.cancel(number)
        for one in clients:
            one.join()
    assert sorted(bell.by_request) == list(range(total))
    ends = [answer.error for answer in bell.answers]
    assert {type(error) for error in ends} <= {type(None), Cancelled}
    assert sum(error is None for error in ends) > total / 2


def test_a_board_forgets_what_has_ended() -> None:
    clock, bell = VirtualExecutor(PHONE, TIMES_US), Bell()
    service = service_on(clock, bell)
    for number in range(50):
        service.submit(replace(branched(number)))
        while service.step() is not None:
            pass
    assert len(bell.answers) == 50
    assert not any(
        (
            service.loop._open,
            service.loop.waiting,
            service.loop._unheard,
            [queue.count for queue in service.loop._queues if queue.count],
        )
    )
