"""Weights of a stage are replaced between items.

Items on their way keep the old ones, and what does not fit changes nothing.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from support.pipeline_bundles import (
    both,
    bundled,
    first_of,
    framed,
    full,
    module_for,
    onnx_file,
    op,
    reference_bundle,
)

from nnstretch.bundle.bundle import Bundle
from nnstretch.errors import BadInput, UnknownName
from nnstretch.partition.connect import PipelineConfig
from nnstretch.run.pipelines.pipeline import Pipeline

RAISED = {"one": np.array([11], np.float32), "two": np.array([12], np.float32)}


def test_five_items_with_parameters_replaced_come_out_in_order() -> None:
    """P5, P6, P7 of the published test.

    Five pairs of inputs, nothing read meanwhile, then five results.
    """
    with Pipeline(reference_bundle()) as pipeline:
        assert pipeline.run(both(3))[0, 0] == 43
        pipeline.set_parameters("param_0", RAISED)
        assert [pipeline.push(both(value)) for value in (3, 4, 5, 6, 7)] == [1, 2, 3, 4, 5]
        assert pipeline.open_items == 5
        results = [pipeline.get(20) for _ in range(5)]
    assert [(result.item, float(result.value()[0, 0])) for result in results] == [
        (1, 93),
        (2, 100),
        (3, 107),
        (4, 114),
        (5, 121),
    ]
    assert [one.items for one in pipeline.statistics()] == [6, 6, 6]


def test_items_on_their_way_keep_the_parameters_they_were_pushed_with() -> None:
    gate = threading.Event()

    def load(value: float) -> tuple[np.ndarray, np.ndarray]:
        gate.wait(0.5)  # the third item has to wait for a place
        return full(value), full(value)

    with Pipeline(
        Bundle(*framed(), name="framed.nns"), {"camera.read:load": load, "boxes:draw": first_of}
    ) as pipeline:
        for value in (3, 4):
            pipeline.push(value)
        pipeline.set_parameters("param_0", RAISED)
        pipeline.push(3)
        pipeline.set_parameters("param_0", {"two": np.array([2], np.float32)})
        pipeline.push(3)
        gate.set()
        assert [pipeline.get(20).value() for _ in range(4)] == [43, 50, 93, 43 + 3 * 10]
        assert {
            name: float(array[0]) for name, array in pipeline.parameters("param_0").items()
        } == {"one": 11, "two": 2}


def test_parameters_that_do_not_fit_leave_everything_as_it_was() -> None:
    """E10, E11: no parameters, an unknown group; and an unknown or misshapen weight."""
    with Pipeline(reference_bundle()) as pipeline:
        with pytest.raises(BadInput, match="no parameters, parameter group param_0"):
            pipeline.set_parameters("param_0", None)  # type: ignore[arg-type]
        with pytest.raises(
            UnknownName, match="unknown parameter group 'param_1', pipeline, it has param_0"
        ):
            pipeline.set_parameters("param_1", RAISED)
        with pytest.raises(BadInput, match="parameter one is 2 float32"):
            pipeline.set_parameters("param_0", {**RAISED, "one": np.zeros(2, np.float32)})
        assert pipeline.run(both(3))[0, 0] == 43


@pytest.mark.parametrize("group", [None, 3, b"param_0", ("param_0",)])
def test_a_group_that_is_no_name_is_unknown(group: Any) -> None:
    with Pipeline(reference_bundle()) as pipeline:
        for call in (
            lambda: pipeline.set_parameters(group, {}),
            lambda: pipeline.parameters(group),
        ):
            with pytest.raises(
                UnknownName, match=r"unknown parameter group .*, pipeline, it has param_0"
            ):
                call()


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_weights_that_are_no_numbers_are_refused_by_name_and_change_nothing(number: float) -> None:
    with Pipeline(reference_bundle()) as pipeline:
        with pytest.raises(
            BadInput,
            match=(
                "parameter two has 1 of 1 numbers that are NaN or infinite, parameter group"
                " param_0, what it replaces has none"
            ),
        ):
            pipeline.set_parameters("param_0", {**RAISED, "two": np.array([number], np.float32)})
        assert pipeline.run(both(3))[0, 0] == 43
        assert {
            name: float(array[0]) for name, array in pipeline.parameters("param_0").items()
        } == {"one": 1, "two": 2}


def test_a_weight_that_had_an_infinity_may_have_one_again() -> None:
    """A mask of minus infinity, say."""
    file = onnx_file([op("Min", "x top", "y")], ["x"], ["y"], top=np.inf)
    config, module = PipelineConfig(), module_for("m", file, "top")
    config["param_group"]["limit"].connect(config[module]["param"])
    config["input"]["x"].connect(config[module]["input"]["x"])
    config[module]["output"][0].connect(config["output"][0])
    with Pipeline(bundled(config.graph, {"m": file})) as pipeline:
        pipeline.set_parameters("limit", {"top": np.array([-np.inf], np.float32)})
        pipeline.set_parameters("limit", {"top": np.array([2], np.float32)})
        assert pipeline.run(full(3))[0, 0] == 2
        with pytest.raises(BadInput, match="parameter top has 1 of 1 numbers"):
            pipeline.set_parameters("limit", {"top": np.array([np.inf], np.float32)})


def test_a_masked_weight_is_refused_by_name() -> None:
    with (
        Pipeline(reference_bundle()) as pipeline,
        pytest.raises(BadInput, match="parameter one is 1 float32 with a mask"),
    ):
        pipeline.set_parameters("param_0", {"one": np.ma.masked_array([9], [True], np.float32)})
