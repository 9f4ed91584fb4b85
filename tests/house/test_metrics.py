"""What `scripts/code_metrics.py` measures stays within the limits that the house keeps."""

from __future__ import annotations

from pathlib import Path

import pytest
from code_metrics import NESTED, Measures, measure

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
LIMITS = {
    "lines beyond 100 columns": (0, 0),
    "functions with placeholder locals, %": (0, 2),
    "public functions with a docstring, %": (95, 100),
    "public functions that raise and say so, %": (90, 100),
    "docstrings that do not stand alone": (0, 0),
    "class names with more than one meaning": (0, 0),
    "import cycles": (0, 0),
    "files in the largest folder": (0, 16),
}


@pytest.fixture(scope="module")
def measures() -> Measures:
    return measure(ROOT / "nnstretch")


@pytest.mark.parametrize("name", LIMITS)
def test_the_code_keeps_its_limits(measures: Measures, name: str) -> None:
    least, most = LIMITS[name]
    assert least <= measures.rows[name] <= most, name


def test_a_comprehension_has_one_for(measures: Measures) -> None:
    assert measures.places[NESTED] == []
