"""A folder of a report that tests may spoil."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.report_page import SAMPLE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SAMPLE, tmp_path / "story"))
