"""A session's threads: the same from run to run, gone when it is closed, replaced when a run
failed.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
from support.bundles import branched_bundle, image

from nnstretch.bundle.bundle import Bundle
from nnstretch.errors import Stuck
from nnstretch.run import Session
from nnstretch.run.bound_memory import BoundNetwork
from nnstretch.run.loaded_network import LoadedNetwork
from nnstretch.schedule import StaticPlacement, ThreadExecutor, run_tasks
from nnstretch.schedule.cpu_affinity import affinity
from nnstretch.soc import Processor
from nnstretch.task import Task


@pytest.fixture(autouse=True)
def _no_thread_stays_behind() -> Iterator[None]:
    before, cores = threading.active_count(), affinity()
    yield
    assert threading.active_count() == before
    assert affinity() == cores


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return branched_bundle(segments=2, predicted=False)


def workers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("nnstretch-")}


def test_threads_serve_one_run_after_another(bundle: Bundle) -> None:
    with Session(bundle, clock="real") as session:
        assert not workers()
        session.run(image(bundle))
        first = workers()
        assert {thread.name for thread in first} == {"nnstretch-dsp"}
        for seed in range(5):
            x = image(bundle, seed)
            assert np.array_equal(session.run(x), session.network.run_sequential(x))
        assert workers() == first
    assert not workers()


def noting(bound_session: BoundNetwork, found: list[tuple[str, set[int] | None]]) -> BoundNetwork:
    """Its calls note on which cores they are made."""
    for name, call in bound_session.calls.items():
        bound_session.calls[name] = lambda name=name, call=call: (
            found.append((name, affinity())),
            call(),
        )  # type: ignore[misc]
    return bound_session


@pytest.mark.skipif(affinity() is None, reason="the system does not say where threads run")
def test_the_caller_has_all_its_cores_between_runs(bundle: Bundle) -> None:
    during: list[tuple[str, set[int] | None]] = []
    before = affinity()
    with Session(bundle, clock="real") as session:
        session.network.bound_session = lambda: noting(
            LoadedNetwork(bundle).bound_session(), during
        )  # type: ignore[method-assign]
        session.run(image(bundle))
        assert affinity() == before
    if len(before or ()) > 1:
        assert all(len(cores or ()) == 1 for _, cores in during)
        assert dict(during)["s1_cpu"] != dict(during)["s1_dsp"]


@pytest.mark.parametrize("where", ["s1_cpu", "s1_dsp", "s2_dsp"])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_session_goes_on_after_a_run_that_failed(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, where: str, error: type[BaseException]
) -> None:
    x, cores = image(bundle), affinity()

    def burn() -> None:
        raise error(f"{where} burnt")

    with Session(bundle, clock="real") as session:
        expected = session.run(x)
        assert session._real_clock.bound is not None
        with monkeypatch.context() as patched:
            patched.setitem(session._real_clock.bound.calls, where, burn)
            with pytest.raises(error, match=f"{where} burnt"):
                session.run(x)
        assert not workers()
        assert affinity() == cores
        assert np.array_equal(session.run(x), expected)


def test_a_closed_session_says_so(bundle: Bundle) -> None:
    session = Session(bundle, clock="real")
    session.run(image(bundle))
    session.close()
    session.close()
    with pytest.raises(Stuck, match="no run of test:branched, session, it has been closed"):
        session.run(image(bundle))


def test_a_closed_session_holds_no_memory_for_a_trace_that_nobody_asked_for(bundle: Bundle) -> None:
    session = Session(bundle, clock="real")
    session.run(image(bundle))
    assert session._real_clock.bound is not None
    held = weakref.ref(session._real_clock.bound.calls["s1_cpu"])
    session.close()
    gc.collect()
    assert held() is None
    assert {span.task.name for span in session.trace.spans} == {task.name for task in session.tasks}


def test_a_forgotten_session_takes_its_threads_along(bundle: Bundle) -> None:
    session = Session(bundle, clock="real")
    session.run(image(bundle))
    assert workers()
    del session
    gc.collect()
    assert not workers()


def test_a_sibling_has_threads_of_its_own(bundle: Bundle) -> None:
    with Session(bundle, clock="real") as session:
        session.run(image(bundle))
        first = workers()
        with session.one_after_another() as alone:
            alone.run(image(bundle))
            assert len(workers()) == 2
        assert workers() == first
        session.run(image(bundle))


def test_callers_take_turns(bundle: Bundle) -> None:
    images = [image(bundle, seed) for seed in range(8)]
    found: dict[int, np.ndarray] = {}
    with Session(bundle, clock="real") as session:
        expected = [session.network.run_sequential(x) for x in images]
        callers = [
            threading.Thread(target=lambda n=n: found.__setitem__(n, session.run(images[n])))  # type: ignore[misc]
            for n in range(len(images))
        ]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    assert all(np.array_equal(found[n], expected[n]) for n in range(len(images)))


def test_an_emulated_session_rehearses_and_runs_on_the_same_threads() -> None:
    with Session(branched_bundle(stem_us=50.0, branch_us=(100.0, 100.0)), clock="real") as session:
        assert session.dilation >= 1
        first = workers()
        session.run(image(branched_bundle()))
        assert workers() == first
        assert session.latency_us >= 50 + 100 + 100


def test_threads_begin_the_next_run_with_other_work() -> None:
    done: list[str] = []
    processors = (Processor("cpu", "cpu", 2), Processor("dsp", "dsp", 2))
    tasks = (Task("a", "a", frozenset(), "cpu"), Task("b", "b", frozenset({"a"}), "dsp"))
    with ThreadExecutor(
        processors, lambda task: done.append(f"old {task.name}"), caller="cpu"
    ) as threads:
        run_tasks(tasks, StaticPlacement(("cpu", "dsp")), threads)
        threads.unpin()
        threads.restart(lambda task: done.append(f"new {task.name}"), {("b", "dsp"): 100.0}, 2.0)
        trace = run_tasks(tasks, StaticPlacement(("cpu", "dsp")), threads)
    assert done == ["old a", "old b", "new a", "new b"]
    assert (
        trace.spans[1].end_us >= trace.spans[0].end_us + 100.0
    )  # a start that is late makes up for it
