"""What `scripts/code_metrics.py` measures stays within the limits that the house keeps."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

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
def rows() -> dict[str, float]:
    path = ROOT / "scripts" / "code_metrics.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    measured: dict[str, float] = module.measure(ROOT / "nnstretch").rows
    return measured


@pytest.mark.parametrize("name", LIMITS)
def test_the_code_keeps_its_limits(rows: dict[str, float], name: str) -> None:
    least, most = LIMITS[name]
    assert least <= rows[name] <= most, name
