"""The example's stages on photographs that its detector never saw."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.example_modules import example_modules

HERE = Path(__file__).parents[2] / "examples" / "detection"
NAMES = ("stages", "detector", "scenes", "scores")


@pytest.fixture(scope="module")
def parts() -> Iterator[Any]:
    """The example's modules, as a script in its folder sees them."""
    with example_modules(HERE, NAMES) as modules:
        yield modules


def test_the_stages_find_the_shapes_of_photographs_it_never_saw(parts: Any) -> None:
    import torch

    from nnstretch.stretch.weights.weights_file import load_weights

    network = parts["detector"].make()
    load_weights(network, HERE / "weights.safetensors")
    scenes = [parts["scenes"].scene(number, parts["scenes"].HELD_OUT) for number in range(10)]
    found = []
    for scene in scenes:
        image = parts["stages"].load(scene.file)
        assert (image.shape, image.dtype, bool(image.flags["C_CONTIGUOUS"])) == (
            (1, 3, 96, 96),
            np.float32,
            True,
        )
        with torch.no_grad():
            found.append(
                parts["stages"].boxes(*(part.numpy() for part in network(torch.from_numpy(image))))
            )
    truths = [scene.truth for scene in scenes]
    assert parts["scores"].recall(found, truths) >= 0.8
    assert parts["scores"].precision(found, truths) >= 0.8


def test_a_file_may_come_as_bytes_or_as_an_array_of_them(parts: Any) -> None:
    file = parts["scenes"].scene(0, 5).file
    load = parts["stages"].load
    np.testing.assert_array_equal(load(file), load(np.frombuffer(file, np.uint8)))


def test_boxes_of_a_class_that_overlap_are_one_and_an_empty_image_has_none(parts: Any) -> None:
    boxes, scores, distances = (
        parts["stages"].boxes,
        np.full((1, 4, 12, 12), -9, np.float32),
        np.zeros((1, 4, 12, 12), np.float32),
    )
    assert boxes(scores, distances).shape == (0, 6)
    scores[0, 2, 5, 5], scores[0, 2, 5, 6], scores[0, 1, 5, 6] = 3, 2, 2
    distances[:] = np.log(2.5)
    found = boxes(scores, distances)
    assert found[:, 5].tolist() == [2, 1], "the second of class 2 overlaps the first"
    np.testing.assert_allclose(found[0, :4] * 96, np.array([3, 3, 8, 8]) * 8, rtol=1e-5)


def test_a_box_counts_once_and_precision_falls_with_wrong_ones(parts: Any) -> None:
    truth = np.array([[0, 0, 0.5, 0.5, 1, 0]], np.float32)
    right, again, wrong = (
        [0, 0, 0.5, side, score, 0] for side, score in ((0.5, 0.9), (0.48, 0.8), (0.1, 0.95))
    )
    scores = parts["scores"]
    assert scores.average_precision([np.array([right, again], np.float32)], [truth], 0) == 1.0
    assert scores.average_precision([np.array([wrong, right], np.float32)], [truth], 0) == 0.5
    assert scores.average_precision([np.zeros((0, 6), np.float32)], [truth], 0) == 0.0
    assert scores.precision([np.array([right, again], np.float32)], [truth]) == 0.5
