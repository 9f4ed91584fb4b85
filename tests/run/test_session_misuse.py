"""What callers may do to a session: use it after and during its end, close it from within, fork,
interrupt it anywhere. They are told, and nothing stays behind.
"""

from __future__ import annotations

import gc
import os
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support.bundles import branched_bundle, image
from support.interrupts import interrupted
from support.within import said_by_fork, within

from nnstretch.bundle.bundle import Bundle
from nnstretch.errors import BadInput, NnstretchError, Stuck
from nnstretch.run import Session
from nnstretch.schedule.cpu_affinity import affinity


@pytest.fixture(autouse=True)
def _cores_and_threads_are_as_before(no_thread_stays_behind: None) -> Iterator[None]:
    cores = affinity()
    yield
    assert affinity() == cores


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return branched_bundle(predicted=False)


@pytest.fixture(scope="module")
def emulated() -> Bundle:
    return branched_bundle(stem_us=50.0, branch_us=(100.0, 100.0))


USES: dict[str, Callable[[Session, np.ndarray], object]] = {
    "run": lambda session, x: session.run(x),
    "compute": lambda session, x: session.compute({"image": x}),
    "network": lambda session, x: session.network,
    "backends": lambda session, x: session.backends,
    "overlap": lambda session, x: session.overlap(x),
    "one_after_another": lambda session, x: session.one_after_another(),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("clock", ["real", "virtual"])
def test_every_use_of_a_closed_session_is_refused(use: str, clock: str) -> None:
    bundle = branched_bundle()
    session = Session(bundle, clock=clock)
    session.close()
    with pytest.raises(Stuck, match=r"session, it has been closed"):
        USES[use](session, image(bundle))
    assert session.trace.spans == ()
    assert session.predicted().spans
    session.close()


def test_a_session_that_is_closed_while_others_use_it_tells_them(bundle: Bundle) -> None:
    x = image(bundle)
    for _ in range(30):
        session, ends = Session(bundle, clock="real"), list[BaseException]()
        expected, wrong = session.run(x), list[int]()
        go = threading.Barrier(4)

        def user() -> None:
            go.wait(20)  # noqa: B023
            try:
                while True:
                    if not np.array_equal(session.run(x), expected):  # noqa: B023
                        wrong.append(1)  # noqa: B023
            except BaseException as error:
                ends.append(error)  # noqa: B023

        users = [threading.Thread(target=user, daemon=True) for _ in range(3)]
        for thread in users:
            thread.start()
        go.wait(20)
        within(session.close)
        for thread in users:
            thread.join(20)
            assert not thread.is_alive()
        assert [type(error) for error in ends] == [Stuck] * 3
        assert not wrong


@pytest.mark.parametrize("where", ["s1_cpu", "s1_dsp"])
@pytest.mark.parametrize("use", ["close", "run"])
def test_a_run_that_closes_or_runs_its_own_session_is_told(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, where: str, use: str
) -> None:
    x, said = image(bundle), list[str]()
    session = Session(bundle, clock="real")
    expected = session.run(x)
    assert session._real_clock.bound is not None
    call = session._real_clock.bound.calls[where]

    def asking() -> None:
        try:
            session.close() if use == "close" else session.run(x)
        except NnstretchError as error:
            said.append(str(error))
        call()

    monkeypatch.setitem(session._real_clock.bound.calls, where, asking)
    assert np.array_equal(within(lambda: session.run(x)), expected)
    assert len(said) == 1
    assert "would never end" in said[0] or "in the middle of it" in said[0]
    within(session.close)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("clock", ["real", "virtual"])
def test_a_forked_process_is_told_that_it_has_no_session(clock: str) -> None:
    bundle = branched_bundle()
    with Session(bundle, clock=clock) as session:
        x = image(bundle)
        session.run(x)
        said = said_by_fork(lambda: session.run(x))
        assert "Stuck" in said
        assert "session of test:branched, a fork has no threads" in said
        assert said_by_fork(session.close) == "returned None"
        assert np.isfinite(session.run(x)).all()


@pytest.mark.parametrize("threads", [0, True, 1.5, "2", 10**9])
def test_a_number_of_threads_is_a_count(bundle: Bundle, threads: Any) -> None:
    with pytest.raises(BadInput, match="threads is "):
        Session(bundle, clock="real", threads=threads)


@pytest.mark.slow
@pytest.mark.parametrize("is_emulated", [False, True])
def test_a_run_that_is_interrupted_anywhere_leaves_a_session_that_works(
    bundle: Bundle, emulated: Bundle, is_emulated: bool
) -> None:
    served = emulated if is_emulated else bundle
    x = image(served)
    with Session(served, clock="real") as session:
        session._dilation = 1.0
        expected = session.network.run_sequential(x)
        at, step = 1, 5 if is_emulated else 1
        while interrupted(lambda: session.run(x), at):
            at += step
            assert np.array_equal(within(lambda: session.run(x)), expected)
            if at % 3 == 0:
                session._real_clock.end_threads()  # so that the next run starts some
        assert at > 100


def test_an_interrupt_while_threads_are_made_leaves_the_caller_its_cores(emulated: Bundle) -> None:
    """The constructor had bound the caller to a core, and nobody knew of it yet."""
    cores, x = affinity(), image(emulated)
    with Session(emulated, clock="real") as session:
        session._dilation = 1.0
        for at in range(60, 180):
            session._real_clock.end_threads()
            assert interrupted(lambda: session.run(x), at)
            assert affinity() == cores


def test_a_rehearsal_that_is_interrupted_is_done_again(emulated: Bundle) -> None:
    with Session(emulated, clock="real") as session:
        assert interrupted(lambda: session.dilation, 400)
        assert session._dilation is None


@pytest.mark.slow
def test_a_close_that_is_interrupted_anywhere_can_be_repeated(bundle: Bundle) -> None:
    at, is_over = 1, False
    while not is_over:
        session = Session(bundle, clock="real")
        session.run(image(bundle))
        is_over = not interrupted(session.close, at)
        at += 1
        within(session.close)
        with pytest.raises(Stuck):
            session.run(image(bundle))
    assert at > 10


@pytest.mark.parametrize("cycles", [100, pytest.param(400, marks=pytest.mark.slow)])
def test_sessions_that_come_and_go_leave_nothing(bundle: Bundle, cycles: int) -> None:
    x = image(bundle)

    def cycle(count: int) -> None:
        for number in range(count):
            with Session(bundle, clock="real") as session:
                if number % 10 == 0:
                    session.run(x)

    cycle(30)
    gc.collect()
    tracemalloc.start()
    try:
        before_bytes = tracemalloc.get_traced_memory()[0]
        cycle(cycles)
        gc.collect()
        grown_bytes = tracemalloc.get_traced_memory()[0] - before_bytes
    finally:
        tracemalloc.stop()
    assert grown_bytes < 100_000


GRID = np.zeros((2, 2))


@pytest.mark.parametrize("name", ["mode", "clock", "plan", "threads", "soc", "backend"])
def test_an_argument_of_another_kind_is_told_by_its_name(bundle: Bundle, name: str) -> None:
    with pytest.raises(BadInput, match=f"^{name} is "):
        Session(bundle, **{name: GRID})


@pytest.mark.parametrize("values", ["x", 1.0, {}, {"image": None}, {"image": GRID}])
def test_only_what_inputs_gave_is_computed(bundle: Bundle, values: Any) -> None:
    with Session(bundle, clock="real") as session, pytest.raises(BadInput, match="values"):
        session.compute(values)


def test_raw_is_true_or_false(bundle: Bundle) -> None:
    with Session(bundle, clock="real") as session, pytest.raises(BadInput, match=r"^raw is "):
        session.run(image(bundle), raw=GRID)  # type: ignore[arg-type]
