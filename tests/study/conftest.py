"""A network in a file, to study."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.capacity_study import FACTORY


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "net.py").write_text(FACTORY)
    return f"{tmp_path / 'net.py'}:make"
