"""What int8 may lose, which images it is made and judged with, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

pytest.importorskip("litert_torch")
pytest.importorskip("ai_edge_quantizer")

import nnstretch
from nnstretch.errors import BadInput, Mismatch
from nnstretch.export.quantize import (
    AccuracyCheck,
    check_fit,
    labeled_images,
    refuse_drop,
    summarize_accuracy,
)
from nnstretch.train.data.calibration import select_images, shuffle_images


@given(st.integers(1, 200), st.integers(1, 250), st.integers(0, 2**32 - 1))
def test_images_are_drawn_by_the_seed_alone(available: int, wanted: int, seed: int) -> None:
    indices = select_images(available, wanted, seed)
    assert indices == sorted(set(indices)) == select_images(available, wanted, seed)
    assert len(indices) == min(available, wanted)
    assert set(indices) <= set(range(available))
    assert sorted(shuffle_images(indices, seed)) == indices


def test_shares_are_counted_from_the_classes() -> None:
    classes = np.array([[1, 2, 3, 4], [1, 2, 3, 0], [1, 2, 0, 0], [1, 0, 0, 4]])
    assert summarize_accuracy(classes, 0.5) == AccuracyCheck(0.75, 0.5, 0.5, 0.5, 0.5, 4)


def test_a_drop_is_refused_beyond_the_points_allowed_and_not_at_them() -> None:
    refuse_drop(0.99, 0.97, 100, 2.0, "net")
    refuse_drop(0.99, 1.0, 100, 0.0, "net")
    with pytest.raises(
        Mismatch,
        match=(
            r"^int8 of net loses 2\.00 points of accuracy, 100 held-out images \(99\.00% to"
            r" 97\.00%\), max_drop allows 1\.9;"
        ),
    ):
        refuse_drop(0.99, 0.97, 100, 1.9, "net")


def test_what_is_no_batch_of_images_and_labels_is_told_by_its_argument() -> None:
    images, labels = torch.zeros(2, 3, 8, 8), torch.zeros(2, dtype=torch.long)
    sound = {"calibration": [(images, labels)], "held_out": [(images, labels)]}
    for name in sound:
        for odd in (0, None, torch.tensor(0.0)):
            with pytest.raises(BadInput, match=f"^{name} is .* each images and their labels"):
                nnstretch.quantize(nn.Flatten(), "net.tflite", classes=3, **(sound | {name: odd}))
        for odd in ("x", [1], [images], [(images,)], [(images, [0, 1])], [(images, labels[:1])]):
            with pytest.raises(BadInput, match=f"^{name} has .* each images and their labels"):
                list(labeled_images(odd, name))


@pytest.mark.slow
@pytest.mark.parametrize("place", ["calibration", "held-out"])
def test_scores_that_are_not_finite_are_refused(place: str, tmp_path: Path) -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
    sound = torch.rand(2, 3, 4, 4), torch.zeros(2, dtype=torch.long)
    broken = sound[0] * torch.inf, sound[1]
    with pytest.raises(BadInput, match=f"^network gives scores that are not finite, {place} "):
        nnstretch.quantize(
            network,
            tmp_path / "net.tflite",
            calibration=[broken if place == "calibration" else sound],
            held_out=[sound if place == "calibration" else broken],
            classes=3,
            max_drop=100.0,
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_calibration_images_of_another_size_are_refused(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Conv2d(3, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    labels = torch.zeros(2, dtype=torch.long)
    sound, small = (torch.rand(2, 3, 8, 8, requires_grad=True), labels), torch.rand(2, 3, 6, 6)
    with pytest.raises(
        BadInput, match=r"^calibration has images of \(2, 3, 6, 6\), quantize, the f"
    ):
        nnstretch.quantize(
            network,
            tmp_path / "net.tflite",
            calibration=[sound, (small, labels)],
            held_out=[sound],
            classes=3,
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("label", [3, -1, 0.5])
def test_a_held_out_label_that_is_no_class_is_refused(label: float, tmp_path: Path) -> None:
    network = nn.Sequential(nn.Conv2d(3, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    images = torch.rand(2, 3, 4, 4)
    with pytest.raises(BadInput, match=f"^label {label}, held-out images, 3 classes are numbered "):
        nnstretch.quantize(
            network,
            tmp_path / "net.tflite",
            calibration=[(images, torch.full((2,), 9))],  # its labels are not read
            held_out=[(images, torch.tensor([0, 2])), (images, torch.tensor([1, label]))],
            classes=3,
            max_drop=100.0,
        )
    assert not list(tmp_path.iterdir())


def test_settings_that_make_no_sense_are_told_by_words_of_this_call() -> None:
    batch = (torch.zeros(2, 3, 8, 8), torch.zeros(2, dtype=torch.long))
    sound = {"path": "net.tflite", "calibration": [batch], "held_out": [batch], "classes": 3}
    for odd, said in (
        ({"path": "net.txt"}, "cannot write net.txt, quantize, name a FILE.tflite "),
        ({"calibration": []}, "calibration images are 0, quantize, at least 1 is needed"),
        ({"held_out": []}, "held-out images are 0, quantize, at least 1 is needed"),
        ({"max_drop": -1}, "max_drop is -1, quantize, it is points of accuracy from 0 to 100"),
    ):
        with pytest.raises(BadInput, match=f"^{said}"):
            nnstretch.quantize(nn.Flatten(), **(sound | odd))


def test_networks_of_several_inputs_or_outputs_are_refused_by_what_they_lack() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            return x + ids

    class Pair(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x, x

    image = torch.zeros(1, 3, 4, 4)
    with pytest.raises(BadInput, match=r"one float32 input: TypeError: .* 'ids'"):
        check_fit(Two(), image, 3, "net.py:Two")
    with pytest.raises(BadInput, match=r"net.py:Pair gives a tuple for one image, .*FACTORY#0"):
        check_fit(Pair(), image, 3, "net.py:Pair")
