"""The Python stages of the example that reads text, on maps whose lines are known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.example_modules import example_modules

HERE = Path(__file__).parents[2] / "examples" / "ocr"
NAMES = ("stages", "pages")


@pytest.fixture(scope="module")
def parts() -> Iterator[Any]:
    """The example's modules, as a script in its folder sees them."""
    with example_modules(HERE, NAMES) as modules:
        yield modules


def test_a_page_depends_on_its_number_alone(parts: Any) -> None:
    page = parts["pages"].page
    assert page(3).lines == page(3).lines
    np.testing.assert_array_equal(page(3).image, page(3).image)
    assert page(3).lines != page(4).lines
    assert page(0).image.shape == (*parts["pages"].PAGE_PX, 3)


def test_runs_of_rows_become_lines_from_top_to_bottom(parts: Any) -> None:
    heat = np.zeros((320, 640), dtype=np.float32)
    heat[40:60, 100:300] = heat[120:140, 20:500] = 0.9
    heat[200:203, 50:90] = 0.9  # too low to be text
    boxes = parts["stages"].boxes_of(heat)
    assert boxes == [(89, 29, 311, 71), (9, 109, 511, 151)]


def test_lines_are_cut_scaled_and_turned(parts: Any) -> None:
    stages, pages = parts["stages"], parts["pages"]
    image = stages.prepare(pages.page(0).image)
    assert (image.min() >= -1, image.max() <= 1) == (True, True)
    heat = np.zeros((1, 1, *pages.PAGE_PX), dtype=np.float32)
    heat[0, 0, 40:60, 100:300] = 0.9
    lines, heads = stages.crop(image, heat)
    assert (lines.shape, heads.shape) == ((6, 3, 48, 320), (6, 3, 48, 192))
    assert np.abs(lines[0]).max() > 0
    assert not lines[1:].any()
    directions = np.zeros((6, 2), dtype=np.float32)
    directions[0] = 0.01, 0.99
    turned = stages.turn(lines, directions)
    np.testing.assert_array_equal(turned[0], lines[0, :, ::-1, ::-1])


def test_repeated_steps_and_blanks_are_no_characters(
    parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts["stages"], "characters", lambda: ("", "a", "b", " "))
    steps = np.array([[1, 1, 0, 1, 2, 2, 3, 0], [0] * 8])
    assert parts["stages"].read(np.eye(4)[steps]) == ["aab"]
