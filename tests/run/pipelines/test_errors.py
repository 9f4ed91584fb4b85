"""What does not fit is refused at the push or where a stage returns it, and an error reaches
exactly the items it concerns.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.bundles import branched_bundle
from support.pipeline_bundles import (
    both,
    chain,
    first_of,
    framed,
    full,
    reference,
    reference_bundle,
)

from nnstretch.bundle.bundle import Bundle
from nnstretch.errors import BadInput, Cancelled, StageFailed, UnknownName
from nnstretch.run.loaded_network import LoadedNetwork
from nnstretch.run.pipelines.item_buffer import ItemResult
from nnstretch.run.pipelines.pipeline import Pipeline
from nnstretch.run.tensor_io import count_non_finite


def test_what_does_not_fit_is_refused_at_the_push_and_takes_no_place() -> None:
    """float64 into a float32 input, a wrong shape, a missing and an unknown name."""
    with Pipeline(reference_bundle()) as pipeline:
        wrong: list[tuple[Any, str]] = [
            (
                {"data_a": full(1).astype(np.float64), "data_b": full(1)},
                "input data_a, expected 3x3 float32, got 3x3 float64",
            ),
            (
                {"data_a": full(1), "data_b": np.zeros((3, 4), np.float32)},
                "input data_b, expected 3x3 float32, got 3x4 float32",
            ),
            (
                {"data_a": full(1)},
                "inputs data_a, pipeline of reference, it expects data_a, data_b",
            ),
            (
                both(1) | {"data_c": full(1)},
                "inputs data_a, data_b, data_c, pipeline of reference, it expects data_a, data_b",
            ),
            (full(1), "inputs one ndarray, pipeline of reference, it expects data_a, data_b"),
            ({"data_a": full(np.nan), "data_b": full(1)}, "9 of 9 numbers that are NaN"),
        ]
        for inputs, message in wrong:
            with pytest.raises(BadInput, match=message):
                pipeline.push(inputs)
        assert pipeline.push(both(3)) == 0
        assert pipeline.get(20).value()[0, 0] == 43


def sometimes(every: int, error: type[Exception]) -> Callable[[np.ndarray], np.ndarray]:
    def m1(x: np.ndarray) -> np.ndarray:
        if int(x[0, 0] - 1) % every == every - 1:
            raise error(f"no good: {int(x[0, 0] - 1)}")
        return np.asarray(x + 2)

    return m1


def test_a_stage_that_raises_fails_exactly_its_items_by_name() -> None:
    with Pipeline(chain(4, python=[1]), {"stages:m1": sometimes(10, KeyError)}) as pipeline:
        results = list(pipeline.stream(full(item) for item in range(100)))
    failed = [result for result in results if result.error is not None]
    assert [result.item for result in failed] == list(range(9, 100, 10))
    assert [first_of(result.value()) for result in results if result.error is None] == [
        10 + item for item in range(100) if item % 10 != 9
    ]
    for result in failed:
        assert (
            str(result.error)
            == f"item {result.item} failed, stage m1, KeyError: 'no good: {result.item}'"
        )
        assert isinstance(result.error, StageFailed)
        assert (result.error.stage, result.error.item) == ("m1", result.item)
        assert isinstance(result.error.__cause__, KeyError)
        with pytest.raises(StageFailed, match="stage m1"):
            result.value()
    assert [(one.items, one.failed) for one in pipeline.statistics()] == [
        (100, 0),
        (100, 10),
        (90, 0),
        (90, 0),
    ]


def test_a_stage_that_raises_may_stop_the_pipeline() -> None:
    results: list[ItemResult] = []

    def push_all() -> None:
        for item in range(1000):
            pipeline.push(full(item), timeout_s=20)
            results.extend([pipeline.get()] if item > 5 else [])

    with Pipeline(
        chain(3, python=[1]), {"stages:m1": sometimes(5, ValueError)}, on_error="stop"
    ) as pipeline:
        with pytest.raises(
            Cancelled, match="no item is taken, pipeline of test, item 4 failed and it stops there"
        ):
            push_all()
        results += [pipeline.get(20) for _ in range(pipeline.open_items)]
    assert [result.item for result in results] == list(range(len(results)))
    kinds = [type(result.error) for result in results]
    assert kinds == [type(None)] * 4 + [StageFailed] + [Cancelled] * (len(results) - 5)


def listed(x: np.ndarray) -> Any:
    return x.tolist()


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            lambda x: (x, x),
            "output x2 of stage m1, expected 3x3 float32, got tuple, not a numpy array",
        ),
        (
            lambda x: x.astype(np.float64),
            "output x2 of stage m1, expected 3x3 float32, got 3x3 float64",
        ),
        (lambda x: x[:2], "output x2 of stage m1, expected 3x3 float32, got 2x3 float32"),
        (lambda x: None, "output x2 of stage m1, expected 3x3 float32, got NoneType"),
        (lambda x: {"x2": x}, "output x2 of stage m1, expected 3x3 float32, got dict"),
        (
            np.ma.masked_array,
            "output x2 of stage m1, expected 3x3 float32, got 3x3 float32 with a mask",
        ),
        (listed, "output x2 of stage m1, expected 3x3 float32, got list"),
    ],
)
@pytest.mark.parametrize("last", [False, True])
def test_what_a_python_stage_returns_is_checked_and_called_its_output(
    made: Callable[[np.ndarray], Any], message: str, last: bool
) -> None:
    """Also where no network reads it."""
    with Pipeline(chain(2 if last else 3, python=[1]), {"stages:m1": made}) as pipeline:
        pipeline.push(full(1))
        with pytest.raises(StageFailed, match=f"stage m1, BadInput: {message}"):
            pipeline.get(20).value()


def test_numbers_of_a_python_stage_are_looked_at_in_front_of_a_network() -> None:
    with Pipeline(
        chain(3, python=[1]), {"stages:m1": lambda x: x * np.float32(np.nan)}
    ) as pipeline:
        pipeline.push(full(1))
        with pytest.raises(
            StageFailed,
            match=(
                "output x2 of stage m1, expected 3x3 float32, got 9 of 9 numbers that are NaN or"
                " infinite"
            ),
        ):
            pipeline.get(20).value()
    with Pipeline(
        chain(2, python=[1]), {"stages:m1": lambda x: x * np.float32(np.nan)}
    ) as pipeline:
        assert np.isnan(pipeline.run(full(1))).all()


@pytest.mark.parametrize(("made", "given"), [({}, "one dict"), ((1,), "1"), (None, "one NoneType")])
def test_outputs_that_a_python_stage_leaves_out_are_named(made: Any, given: str) -> None:
    calls: dict[str, Callable[..., Any]] = {
        "camera.read:load": lambda _: made,
        "boxes:draw": first_of,
    }
    with Pipeline(Bundle(*framed()), calls) as pipeline:
        pipeline.push(0)
        with pytest.raises(
            StageFailed,
            match=(
                f"stage before returned {given}, camera.read:load, it has 2 outputs: a tuple of"
                " data_a, data_b"
            ),
        ):
            pipeline.get(20).value()


def test_a_masked_input_is_refused_by_its_name() -> None:
    """No network heeds a mask: what was taken out would count again."""
    masked = np.ma.masked_array(full(1), full(0))
    with (
        Pipeline(reference_bundle()) as pipeline,
        pytest.raises(
            BadInput, match="input data_b, expected 3x3 float32, got 3x3 float32 with a mask"
        ),
    ):
        pipeline.push({"data_a": full(1), "data_b": masked})
    with (
        Pipeline(chain(2, python=[0]), {"stages:m0": lambda x: x}) as pipeline,
        pytest.raises(BadInput, match=r"input x, expected .* with a mask"),
    ):
        pipeline.push(masked)
    network = LoadedNetwork(Bundle(*reference()))
    with pytest.raises(
        BadInput, match="input data_a, expected 3x3 float32, got 3x3 float32 with a mask"
    ):
        network.run_sequential({"data_a": masked, "data_b": full(1)})


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@pytest.mark.parametrize("python", [[], [0]])
def test_a_matrix_is_computed_with_as_an_array(python: list[int]) -> None:
    """`*` of two np.matrix is a matrix product."""
    with Pipeline(chain(2, python=python), {"stages:m0": lambda x: x * x}) as pipeline:
        found = pipeline.run(np.matrix(full(3)))
        assert type(found) is np.ndarray
        assert first_of(found) == (3 * 3 + 2 if python else 3 + 1 + 2)


def test_a_bundle_without_a_pipeline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        BadInput,
        match=r"no pipeline, bundle .*, it has branches only; `nnstretch partition` makes one",
    ):
        Pipeline(branched_bundle())
    with pytest.raises(
        UnknownName, match="unknown on_error 'sometimes', pipeline, it is one of continue, stop"
    ):
        Pipeline(chain(2), on_error="sometimes")
    with pytest.raises(BadInput, match="results is 0"):
        Pipeline(chain(2), results=0)
    with pytest.raises(UnknownName, match="the file does not exist"):
        Pipeline(tmp_path / "none.nns")


def test_numbers_whose_sum_is_out_of_range_are_no_infinities() -> None:
    large = np.full((4, 4), 3e38, np.float32)
    assert count_non_finite(large) == 0
    large[0, :3] = np.nan, np.inf, -np.inf
    assert count_non_finite(large) == 3
