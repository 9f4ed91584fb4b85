"""What judges int8: labels where the network knows their classes, else the noise of its output."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch

from nnstretch.errors import BadInput, Mismatch
from nnstretch.export.int8_accuracy import LabeledAccuracy
from nnstretch.export.subgraph_specs import ExportRequest
from nnstretch.export.verify import judge_int8

CLASSES = 10


@dataclass(frozen=True)
class Held:
    """Images whose first ten numbers are the scores that the module gives them."""

    images: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self):  # type: ignore[no-untyped-def]
        yield from zip(self.images.split(32), self.labels.split(32), strict=True)


def scores_of(x: torch.Tensor) -> torch.Tensor:
    return x[:, 0, 0, :CLASSES]


def held(right: float) -> Held:
    """Labels that agree with the scores for a share of the images."""
    images = torch.randn(200, 1, 1, CLASSES, generator=torch.Generator().manual_seed(0))
    labels = scores_of(images).argmax(1)
    labels[int(200 * right) :] += 1
    return Held(images, labels % CLASSES)


def request(held_out: Held | None, batch: int = 1, **fields: float) -> ExportRequest:
    plan = SimpleNamespace(model="net", input_shape=(batch, 1, 1, CLASSES))
    settings = {"least_snr_db": None, "max_drop": None, **fields}
    made = SimpleNamespace(module=scores_of, plan=plan, held_out=held_out, int8=True, **settings)
    return cast("ExportRequest", made)


def loud(x: np.ndarray) -> np.ndarray:
    """Three times the scores: a ratio of -6 dB, and the same classes."""
    return 3 * x[:, 0, 0, :CLASSES]


def confused(x: np.ndarray) -> np.ndarray:
    """The right scores for all but a few of the images, in another order."""
    scores = x[:, 0, 0, :CLASSES]
    return np.where(scores[:, :1] > 1.5, np.roll(scores, 1, 1), scores)


EXPECTED = [np.arange(10.0)]


def test_labels_accept_what_the_noise_would_refuse() -> None:
    ratio_db, accuracy = judge_int8(EXPECTED, [3 * EXPECTED[0]], request(held(0.9)), loud)
    assert ratio_db == pytest.approx(-6.02, abs=0.01)
    assert accuracy == LabeledAccuracy(200, 0.9, 0.9, CLASSES)


def test_labels_refuse_what_the_noise_would_accept() -> None:
    with pytest.raises(
        Mismatch, match=r"^int8 of net loses \d+\.\d\d points of accuracy, 200 held"
    ):
        judge_int8(EXPECTED, EXPECTED, request(held(1.0)), confused)
    _, accuracy = judge_int8(EXPECTED, EXPECTED, request(held(1.0), max_drop=50), confused)
    assert accuracy is not None
    assert 0.5 < accuracy.int8_accuracy < accuracy.float_accuracy == 1


@pytest.mark.parametrize(("batch", "judged"), [(20, 200), (48, 192), (64, 192), (200, 200)])
def test_labels_judge_networks_of_any_batch(batch: int, judged: int) -> None:
    """Images come 32 at a time, whatever one input of the network takes."""

    def run(x: np.ndarray) -> np.ndarray:
        assert len(x) == batch
        return loud(x)

    _, accuracy = judge_int8(EXPECTED, EXPECTED, request(held(1.0), batch), run)
    assert accuracy == LabeledAccuracy(judged, 1.0, 1.0, CLASSES)


def test_too_few_labels_for_one_input_judge_nothing_and_the_error_says_so() -> None:
    with pytest.raises(BadInput, match=r"no label judges it \(.*fewer than one input takes"):
        judge_int8(EXPECTED, EXPECTED, request(held(1.0), 201, max_drop=5), loud)


@pytest.mark.parametrize("held_out", [None, held(0.1)])
def test_the_noise_decides_where_no_label_says_anything(held_out: Held | None) -> None:
    """Without labels, or with those of classes that the network does not know."""
    with pytest.raises(
        Mismatch, match=r"ratio of -6\.0 dB, .*--calibration would judge .*--min-snr"
    ):
        judge_int8(EXPECTED, [3 * EXPECTED[0]], request(held_out), loud)
    judged = judge_int8(EXPECTED, [3 * EXPECTED[0]], request(held_out, least_snr_db=-7), loud)
    assert judged[1] is None


def test_a_limit_of_what_does_not_judge_is_refused_and_says_what_does() -> None:
    drop = request(held(0.1), max_drop=5)
    with pytest.raises(BadInput, match=r"^--max-drop is 5, int8 of net, no label .* --min-snr"):
        judge_int8(EXPECTED, EXPECTED, drop, loud)
    with pytest.raises(BadInput, match=r"^--min-snr is 30, .* of 200 held-out .* --max-drop"):
        judge_int8(EXPECTED, EXPECTED, request(held(0.9), least_snr_db=30), loud)


@pytest.mark.parametrize(
    ("accuracy", "classes", "knows"),
    [
        *((0.99, 2, True), (0.76, 2, True), (0.7, 2, False), (0.7, 3, True), (0.6, 3, False)),
        *((0.2, 10, True), (0.19, 10, False), (1.0, 1, True)),
    ],
)
def test_labels_judge_where_the_network_knows_them(
    accuracy: float, classes: int, knows: bool
) -> None:
    assert LabeledAccuracy(100, accuracy, 0.5, classes).says_something is knows
