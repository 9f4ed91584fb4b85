"""The head of every package lists what is in it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "nnstretch"
PACKAGES = sorted(path.parent for path in PACKAGE.rglob("__init__.py"))


def members(folder: Path) -> set[str]:
    files = {path.name for path in folder.glob("*.py")} - {"__init__.py", "__main__.py"}
    return files | {f"{path.parent.name}/" for path in folder.glob("*/__init__.py")}


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda path: str(path.relative_to(PACKAGE.parent)))
def test_every_file_and_folder_is_listed(folder: Path) -> None:
    listing = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
    words = {word.rstrip(".") for word in re.split(r"[\s,;]+", listing or "")}
    assert sorted(members(folder) - words) == []
