"""What `import nnstretch` offers: names with signatures, each loaded when it is first used."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import nnstretch

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", nnstretch.__all__)
def test_a_public_name_can_be_called_and_is_documented(name: str) -> None:
    value = getattr(nnstretch, name)
    assert callable(value)
    assert inspect.getdoc(value)


def test_help_shows_the_signature_of_the_search() -> None:
    parameters = inspect.signature(nnstretch.search).parameters
    assert [*parameters][:3] == ["graph", "soc", "processors"]


@pytest.mark.parametrize("name", ["capture", "export", "profile", "stretch"])
def test_a_folder_that_can_be_called_has_the_signature_of_its_function(name: str) -> None:
    folder = getattr(nnstretch, name)
    assert inspect.signature(folder) == inspect.signature(getattr(folder, name))


@pytest.mark.slow
def test_type_checkers_see_the_types_of_public_names(tmp_path: Path) -> None:
    assert Path(nnstretch.__file__).with_name("py.typed").exists()
    code = "import nnstretch\nreveal_type(nnstretch.search)\nreveal_type(nnstretch.load_soc)\n"
    (tmp_path / "use.py").write_text(code, encoding="utf-8")
    # With the settings and the cache of `make lint`, which is quick where that ran before.
    settings = ["--config-file", str(ROOT / "pyproject.toml")]
    cache = ["--cache-dir", str(ROOT / ".mypy_cache")]
    command = [sys.executable, "-m", "mypy", *settings, *cache, "use.py"]
    out = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    assert "SearchResult" in out
    assert "Soc" in out


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'serch'"):
        _ = nnstretch.serch
