"""What callers and Python stages may do to a pipeline that runs: write on arrays, go away, close it from within, fork."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from pipeline_bundles import MAP, bundled, chain, module_for, onnx_file, op

from nnstretch.bundle import Bundle
from nnstretch.errors import StageFailed
from nnstretch.pipeline.config import PipelineConfig
from nnstretch.pipeline.links import Module
from nnstretch.run.stream import Pipeline
from nnstretch.stages import Item


def full(value: float) -> np.ndarray:
    return np.full((3, 3), value, np.float32)


def fan() -> Bundle:
    """y = x + 1, then y passes a Python stage and, beside it, is doubled; both are added."""
    config = PipelineConfig()
    files = {
        "s": onnx_file([op("Add", "x c", "y")], ["x"], ["y"], c=1),
        "n": onnx_file([op("Mul", "ni c", "no")], ["ni"], ["no"], c=2),
        "j": onnx_file([op("Add", "a b", "z")], ["a", "b"], ["z"]),
    }
    s, n, j = (module_for(name, file) for name, file in files.items())
    m = Module("m", (Item("mi", MAP),), (Item("mo", MAP),), call="stages:m")
    config["input"]["x"].connect(config[s]["input"]["x"])
    config[s]["output"][0].connect(config[m]["input"]["mi"])
    config[s]["output"][0].connect(config[n]["input"]["ni"])
    config[m]["output"][0].connect(config[j]["input"]["a"])
    config[n]["output"][0].connect(config[j]["input"]["b"])
    config[j]["output"][0].connect(config["output"][0])
    return bundled(config.links, files)


def test_an_array_may_be_used_again_once_it_was_pushed() -> None:
    def frames() -> Iterator[np.ndarray]:
        frame = full(0)
        for k in range(50):
            frame[:] = k
            yield frame

    with Pipeline(chain(4)) as pipeline:
        assert [float(result.value()[0, 0]) for result in pipeline.stream(frames())] == [k + 10 for k in range(50)]


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

    with Pipeline(fan(), {"stages:m": zeroed}) as pipeline, pytest.raises(StageFailed, match="stage m, ValueError: .*read-only"):
        pipeline.run(full(1))
    with Pipeline(fan(), {"stages:m": lambda x: x}) as pipeline:
        assert [float(r.value()[0, 0]) for r in pipeline.stream(full(k) for k in range(20))] == [3 * (k + 1) for k in range(20)]
