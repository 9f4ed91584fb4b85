"""Scripts and examples import what exists; every command teaches its use and stands alone."""

from __future__ import annotations

import ast
import contextlib
import importlib
import sys
from pathlib import Path

import pytest
from support.scripts import COMMANDS, FOLDERS, SCRIPTS, load_command

from nnstretch.errors import BadInput

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


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shows_how_it_is_used(command: str) -> None:
    parser = load_command(command).arguments()
    assert f"python scripts/{command}" in parser.format_help()


def test_the_demo_replaces_no_folder_that_is_not_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = load_command("demo")
    (tmp_path / "thesis.txt").write_text("three years")
    monkeypatch.setattr(sys, "argv", ["demo.py", "--out", str(tmp_path)])
    with pytest.raises(BadInput, match="so no demo wrote it: name another --out"):
        demo.main()
    assert (tmp_path / "thesis.txt").read_text() == "three years"
    own = tmp_path / "demo"
    demo.Story(own)
    demo.check_replaceable(own)
    with pytest.raises(BadInput, match="it is a file, name a folder"):
        demo.check_replaceable(tmp_path / "thesis.txt")


def test_no_command_imports_a_file_of_another() -> None:
    owners = {path.stem: path.parent for folder in FOLDERS for path in folder.glob("*.py")}
    owners |= {path.stem: path for path in SCRIPTS.glob("*.py")}
    strangers = []
    for path in SCRIPTS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            strangers += [
                (path, name) for name in names if owners.get(name, path.parent) != path.parent
            ]
    assert strangers == []


def test_files_of_commands_have_names_of_their_own() -> None:
    names = [path.stem for path in SCRIPTS.rglob("*.py") if path.name != "__main__.py"]
    assert len(names) == len(set(names))
    assert set(names).isdisjoint(sys.stdlib_module_names)
