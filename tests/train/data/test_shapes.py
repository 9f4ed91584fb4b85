"""The drawn shapes: fixed by their numbers, told apart by outline and texture and never by
colour.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nnstretch.errors import BadInput
from nnstretch.train.data import shapes
from nnstretch.train.data.shapes import CLASS_NAMES, open_shapes


def test_more_images_keep_the_earlier_ones_and_parts_share_none() -> None:
    few, more = open_shapes(16, 2, 1, 5), open_shapes(16, 3, 2, 5)
    assert torch.equal(few.train.images.view(60, 2, -1), more.train.images.view(60, 3, -1)[:, :2])  # type: ignore[attr-defined]
    assert torch.equal(few.held.images.view(60, 1, -1), more.held.images.view(60, 2, -1)[:, :1])  # type: ignore[attr-defined]
    every = torch.cat([more.train.images, more.held.images]).flatten(1)  # type: ignore[attr-defined]
    assert len(every.unique(dim=0)) == len(every) == 60 * 5
    assert not torch.equal(few.train.images, open_shapes(16, 2, 1, 6).train.images)  # type: ignore[attr-defined]


@pytest.mark.slow
def test_shapes_have_a_class_for_each_outline_and_texture_and_colour_tells_none() -> None:
    dataset = open_shapes(32, 8, 8, 0)
    assert len(set(CLASS_NAMES)) == len(dataset.classes) >= 60
    assert "striped star" in dataset.classes
    images = dataset.train.images.float() / 255  # type: ignore[attr-defined]
    assert images.mean((0, 2, 3)).tolist() == pytest.approx(dataset.mean, abs=1e-5)
    assert images.transpose(0, 1).flatten(1).std(1).tolist() == pytest.approx(dataset.std, abs=1e-4)
    seen = images.mean((2, 3)).view(60, 8, 3).mean(1)
    held = (dataset.held.images.float() / 255).mean((2, 3))  # type: ignore[attr-defined]
    guessed = torch.cdist(held, seen).argmin(1) == dataset.held.labels  # type: ignore[attr-defined]
    assert guessed.float().mean() < 0.05, "chance is 1 in 60"


def test_outlines_and_textures_differ_among_themselves() -> None:
    line = np.linspace(-1.2, 1.2, 48, dtype=np.float32)
    x, y = np.meshgrid(line, line)
    inside = np.stack([outline(x, y) < 0 for outline in shapes.OUTLINES.values()])
    assert (inside[:, None] != inside[None]).mean((2, 3))[
        ~np.eye(len(inside), dtype=bool)
    ].min() > 0.03
    assert inside.mean((1, 2)).min() > 0.1
    for texture in shapes.TEXTURES.values():
        blend = texture(2 * x, 2 * y, np.random.default_rng(0))
        assert blend.min() >= 0
        assert blend.max() <= 1
        assert blend.std() > 0.2


@pytest.mark.parametrize("sizes", [(8, 1, 1, 0), (32, 0, 1, 0), (32, 1, 0, 0), (32, 1, 1, -1)])
def test_sizes_of_shapes_that_make_no_sense_are_refused(sizes: tuple[int, int, int, int]) -> None:
    with pytest.raises(BadInput, match="data set shapes, needed are"):
        open_shapes(*sizes)
