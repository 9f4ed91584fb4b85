"""Tiny networks in a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.tiny_networks import TINY


@pytest.fixture
def networks(tmp_path: Path) -> Path:
    path = tmp_path / "nets.py"
    path.write_text(TINY, encoding="utf-8")
    return path
