"""What callers and Python stages may do to a pipeline that runs.

Write on arrays, go away, close it from within, fork.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator
from time import perf_counter, sleep
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.pipeline_bundles import MAP, bundled, chain, full, module_for, onnx_file, op

from nnstretch.bundle.bundle import Bundle
from nnstretch.errors import BadInput, Cancelled, StageFailed, Stuck
from nnstretch.partition.connect import PipelineConfig
from nnstretch.partition.module_graph import Module
from nnstretch.pipeline import TensorDecl
from nnstretch.run.pipelines.item_buffer import StagePacing
from nnstretch.run.pipelines.pipeline import Pipeline


def fan() -> Bundle:
    """y = x + 1, then y passes a Python stage and, beside it, is doubled; both are added."""
    config = PipelineConfig()
    files = {
        "s": onnx_file([op("Add", "x c", "y")], ["x"], ["y"], c=1),
        "n": onnx_file([op("Mul", "ni c", "no")], ["ni"], ["no"], c=2),
        "j": onnx_file([op("Add", "a b", "z")], ["a", "b"], ["z"]),
    }
    s, n, j = (module_for(name, file) for name, file in files.items())
    m = Module("m", (TensorDecl("mi", MAP),), (TensorDecl("mo", MAP),), call="stages:m")
    config["input"]["x"].connect(config[s]["input"]["x"])
    config[s]["output"][0].connect(config[m]["input"]["mi"])
    config[s]["output"][0].connect(config[n]["input"]["ni"])
    config[m]["output"][0].connect(config[j]["input"]["a"])
    config[n]["output"][0].connect(config[j]["input"]["b"])
    config[j]["output"][0].connect(config["output"][0])
    return bundled(config.graph, files)


def test_an_array_may_be_used_again_once_it_was_pushed() -> None:
    def frames() -> Iterator[np.ndarray]:
        frame = full(0)
        for k in range(50):
            frame[:] = k
            yield frame

    with Pipeline(chain(4)) as pipeline:
        assert [float(result.value()[0, 0]) for result in pipeline.stream(frames())] == [
            k + 10 for k in range(50)
        ]


def test_a_python_stage_may_return_the_same_array_every_time() -> None:
    kept = full(0)

    def copied(x: np.ndarray) -> np.ndarray:
        np.copyto(kept, x)
        return kept

    for last in (False, True):
        with Pipeline(chain(2 if last else 4, (1,)), {"stages:m1": copied}) as pipeline:
            found = [result.value() for result in pipeline.stream(full(k) for k in range(50))]
        assert [float(one[0, 0]) for one in found] == [k + (1 if last else 8) for k in range(50)]


def test_a_python_stage_may_write_on_what_only_it_reads() -> None:
    def doubled(x: np.ndarray) -> np.ndarray:
        x *= 2
        return x

    mine = full(3)
    with Pipeline(chain(2, (0,)), {"stages:m0": doubled}) as pipeline:
        assert pipeline.run(mine)[0, 0] == 8
    assert mine[0, 0] == 3


def test_a_python_stage_cannot_write_on_what_others_read() -> None:
    def zeroed(x: np.ndarray) -> np.ndarray:
        x *= 0
        return x

    with (
        Pipeline(fan(), {"stages:m": zeroed}) as pipeline,
        pytest.raises(StageFailed, match=r"stage m, ValueError: .*read-only"),
    ):
        pipeline.run(full(1))
    with Pipeline(fan(), {"stages:m": lambda x: x}) as pipeline:
        assert [float(r.value()[0, 0]) for r in pipeline.stream(full(k) for k in range(20))] == [
            3 * (k + 1) for k in range(20)
        ]


def raising(at: int, error: BaseException) -> Callable[[np.ndarray], np.ndarray]:
    def one(x: np.ndarray) -> np.ndarray:
        if x[0, 0] == at:
            raise error
        return x

    return one


@pytest.mark.parametrize("broken", [True, False])
def test_what_came_before_a_bad_item_is_heard_first(broken: bool) -> None:
    def items() -> Iterator[Any]:
        yield from (full(k) for k in range(5))
        if broken:
            raise RuntimeError("no more images")
        yield full(5).astype(np.float64)

    found: list[int] = []
    with Pipeline(chain(3)) as pipeline:
        with pytest.raises(RuntimeError if broken else BadInput):
            found.extend(result.item for result in pipeline.stream(items()))
        assert found == [0, 1, 2, 3, 4]
        assert (pipeline.open_items, pipeline.run(full(1))[0, 0]) == (0, 7)


def test_a_stream_that_stops_gives_every_result_up_to_the_error() -> None:
    found: list[tuple[int, str]] = []
    with Pipeline(
        chain(2, (0,)), {"stages:m0": raising(3, ValueError("no"))}, on_error="stop"
    ) as pipeline:
        stream = pipeline.stream(full(k) for k in range(60))
        with pytest.raises(Cancelled, match="item 3 failed"):
            found.extend((result.item, type(result.error).__name__) for result in stream)
    assert found[:4] == [(0, "NoneType"), (1, "NoneType"), (2, "NoneType"), (3, "StageFailed")]
    assert {name for _, name in found[4:]} <= {"Cancelled"}


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), StopIteration()])
def test_whatever_a_stage_raises_fails_its_item_alone(error: BaseException) -> None:
    with Pipeline(chain(2, (0,)), {"stages:m0": raising(3, error)}) as pipeline:
        found = [
            (result.item, result.error) for result in pipeline.stream(full(k) for k in range(6))
        ]
    assert [item for item, one in found if one is not None] == [3]
    assert isinstance(found[3][1], StageFailed)
    assert found[3][1].__cause__ is error


def threads() -> set[str]:
    return {
        thread.name for thread in threading.enumerate() if thread.name.startswith("nnstretch-m")
    }


def gone() -> bool:
    until_s = perf_counter() + 20
    while threads() and perf_counter() < until_s:
        sleep(0.01)
    return not threads()


def test_a_stage_may_close_its_own_pipeline() -> None:
    def closing(x: np.ndarray) -> np.ndarray:
        pipeline.close()
        return x

    pipeline = Pipeline(chain(3, (0,)), {"stages:m0": closing})
    pipeline.push(full(1))
    assert pipeline.get(20).value()[0, 0] == 6
    assert gone()


def test_a_worker_that_collects_its_own_pipeline_does_not_wait_for_itself() -> None:
    held: list[Any] = []
    begun, dropped = threading.Event(), threading.Event()

    def collecting(x: np.ndarray) -> np.ndarray:
        begun.set()
        dropped.wait(20)
        held.clear()  # the last reference
        return x

    held.append(Pipeline(chain(3, (0,)), {"stages:m0": collecting}))
    held[0].push(full(1))
    begun.wait(20)
    dropped.set()
    assert gone()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_is_told_that_it_has_no_stages() -> None:
    with Pipeline(chain(2)) as pipeline:
        pipeline.run(full(1))
        child = os.fork()
        if child == 0:
            said = []
            for call in (
                lambda: pipeline.run(full(1)),
                lambda: pipeline.push(full(1)),
                lambda: pipeline.get(),
            ):
                with pytest.raises(Stuck, match="a fork has no threads"):
                    call()
                said.append(1)
            os._exit(0 if len(said) == 3 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert pipeline.run(full(1))[0, 0] == 4


@pytest.mark.parametrize("timeout_s", [float("inf"), 1e300])
def test_a_timeout_may_be_infinite(timeout_s: float) -> None:
    with Pipeline(chain(2)) as pipeline:
        pipeline.push(full(1), timeout_s)
        assert pipeline.get(timeout_s).value()[0, 0] == 4


def test_a_run_has_one_deadline_for_its_two_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock of the test.

    What is gone when the item is on its way is no longer there for its result.
    """
    now_s, waited = [0.0], list[float | None]()

    def waits(_there: Callable[[], bool], left_s: float | None) -> bool:
        waited.append(left_s)
        return False

    with Pipeline(chain(2, (0,)), {"stages:m0": lambda x: gate.wait(20) and x}) as pipeline:
        gate = threading.Event()
        entering = pipeline._forms.from_caller
        monkeypatch.setattr("nnstretch.schedule.timeout.perf_counter", lambda: now_s[0])
        monkeypatch.setattr(
            pipeline._forms,
            "from_caller",
            lambda *given: [entering(*given), now_s.__setitem__(0, 3.0)][0],
        )
        monkeypatch.setattr(
            pipeline._executor,
            "consumer",
            SimpleNamespace(wait=waits, ring=lambda: None, asleep=False),
        )
        with pytest.raises(Stuck, match="no result of item 0 in 5 s"):
            pipeline.run(full(1), timeout_s=5)
        gate.set()
    assert waited == [2.0]


@pytest.mark.parametrize("timeout_s", ["1", float("nan"), [1]])
def test_a_timeout_is_a_number(timeout_s: Any) -> None:
    with Pipeline(chain(2)) as pipeline:
        for call in (lambda: pipeline.push(full(1), timeout_s), lambda: pipeline.get(timeout_s)):
            with pytest.raises(BadInput, match="timeout_s is"):
                call()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"results": "a"}, "results is 'a'"),
        ({"results": 1.5}, "results is 1.5"),
        ({"traced": -1}, "traced is -1"),
        ({"results": 10**9}, "at most 1000000"),
    ],
)
def test_bounds_of_a_pipeline_are_checked(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Pipeline(chain(2), **fields)


def test_what_is_no_function_is_refused_at_once() -> None:
    with pytest.raises(BadInput, match="passed was no function but int"):
        Pipeline(chain(2, (0,)), {"stages:m0": 1})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("durations_us", "dilation", "why"),
    [
        (None, 1.0, "durations_us is None"),
        ((1.0, 2.0), 1.0, r"durations_us\[0\] is 1\.0 \(float\), needed is tuple of numbers"),
        (((1.0,),), 1.0, r"durations_us is \(\(1\.0,\),\), pace .* each replica .* \[1, 1\]"),
        (((1.0, 2.0), (1.0,)), 1.0, "durations_us is .* each replica"),
        (((-1.0,), (1.0,)), 1.0, "durations_us is .* begin at 0"),
        (((math.nan,), (1.0,)), 1.0, r"durations_us\[0\]\[0\] is nan"),
        (((1.0,), (1.0,)), 0.0, "dilation is 0"),
        (((1.0,), (1.0,)), 10**400, "dilation is"),
    ],
)
def test_a_pace_has_a_time_for_each_replica(durations_us: Any, dilation: Any, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        Pipeline(chain(2), pace=StagePacing(durations_us, dilation))
