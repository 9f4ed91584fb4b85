"""Names that scripts and examples import from the package exist."""

from __future__ import annotations

import ast
import contextlib
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = [
    *sorted((ROOT / "scripts").rglob("*.py")),
    *sorted((ROOT / "examples").rglob("*.py")),
]


def imported_names(source: str) -> list[tuple[str, str]]:
    """Module and name of every import from the package, also those inside programs in strings."""
    names: list[tuple[str, str]] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nnstretch"):
            names += [(node.module or "", alias.name) for alias in node.names]
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and "from nnstretch" in text and "\n" in text:
            with contextlib.suppress(SyntaxError):
                names += imported_names(text)
    return names


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_imported_names_exist(program: Path) -> None:
    missing = []
    for module, name in imported_names(program.read_text(encoding="utf-8")):
        package = importlib.import_module(module)
        if not hasattr(package, name):
            try:
                importlib.import_module(f"{module}.{name}")
            except ImportError:
                missing.append(f"{module}.{name}")
    assert missing == []
