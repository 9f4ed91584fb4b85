"""Weights of a stage are replaced between items: items on their way keep the old ones, and what does not fit changes nothing."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from pipeline_bundles import both, first_of, framed, full, reference_bundle

from nnstretch.bundle import Bundle
from nnstretch.errors import BadInput, UnknownName
from nnstretch.run.stream import Pipeline

RAISED = {"one": np.array([11], np.float32), "two": np.array([12], np.float32)}


def test_five_items_with_parameters_replaced_come_out_in_order() -> None:
    """P5, P6, P7 of the published test: five pairs of inputs, nothing read meanwhile, then five results."""
    with Pipeline(reference_bundle()) as pipeline:
        assert pipeline.run(both(3))[0, 0] == 43
        pipeline.set_parameters("param_0", RAISED)
        assert [pipeline.push(both(value)) for value in (3, 4, 5, 6, 7)] == [1, 2, 3, 4, 5]
        assert pipeline.open_items == 5
        results = [pipeline.get(20) for _ in range(5)]
    assert [(result.item, float(result.value()[0, 0])) for result in results] == [(1, 93), (2, 100), (3, 107), (4, 114), (5, 121)]
    assert [one.items for one in pipeline.statistics()] == [6, 6, 6]


def test_items_on_their_way_keep_the_parameters_they_were_pushed_with() -> None:
    gate = threading.Event()

    def load(value: float) -> tuple[np.ndarray, np.ndarray]:
        gate.wait(20)
        return full(value), full(value)

    with Pipeline(Bundle(*framed(), name="framed.nns"), {"camera.read:load": load, "boxes:draw": first_of}) as pipeline:
        for value in (3, 4):
            pipeline.push(value)
        pipeline.set_parameters("param_0", RAISED)
        pipeline.push(3)
        pipeline.set_parameters("param_0", {"two": np.array([2], np.float32)})
        pipeline.push(3)
        gate.set()
        assert [pipeline.get(20).value() for _ in range(4)] == [43, 50, 93, 43 + 3 * 10]
        assert {name: float(array[0]) for name, array in pipeline.parameters("param_0").items()} == {"one": 11, "two": 2}


def test_parameters_that_do_not_fit_leave_everything_as_it_was() -> None:
    """E10, E11: no parameters, an unknown group; and an unknown or misshapen weight."""
    with Pipeline(reference_bundle()) as pipeline:
        with pytest.raises(BadInput, match="no parameters, parameter group param_0"):
            pipeline.set_parameters("param_0", None)  # type: ignore[arg-type]
        with pytest.raises(UnknownName, match="unknown parameter group 'param_1', pipeline, it has param_0"):
            pipeline.set_parameters("param_1", RAISED)
        with pytest.raises(BadInput, match="parameter one is 2 float32"):
            pipeline.set_parameters("param_0", {**RAISED, "one": np.zeros(2, np.float32)})
        assert pipeline.run(both(3))[0, 0] == 43
