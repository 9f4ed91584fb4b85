"""An export that fails leaves its folder as it was."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from nnstretch.capture import trace  # noqa: E402
from nnstretch.errors import BadInput  # noqa: E402
from nnstretch.export.cpp import export as verb  # noqa: E402
from nnstretch.export.cpp.project import WRITTEN  # noqa: E402


def export(folder: Path, width: int, build_here: bool) -> None:
    module = nn.Conv2d(3, width, 3).eval()
    captured = trace(module, torch.zeros(1, 3, 8, 8), f"net{width}")
    verb.export_whole_cpp(module, captured, folder, build_here=build_here)


def state(folder: Path) -> dict[Path, tuple[bytes, int]]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


@pytest.fixture
def no_build(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(folder: Path) -> Path:
        (folder / "build").mkdir(exist_ok=True)
        (folder / "build" / "run").write_text("half")
        raise BadInput("cannot build")

    monkeypatch.setattr(verb, "missing_tools", list)
    monkeypatch.setattr(verb, "build", build)


def test_an_older_network_stays_with_its_build(no_build: None, tmp_path: Path) -> None:
    folder = tmp_path / "net"
    export(folder, 4, build_here=False)
    assert {path.name for path in folder.iterdir()} == set(WRITTEN)
    for name in ("build/run", "mine/thesis.txt"):
        (folder / name).parent.mkdir()
        (folder / name).write_text("years of work")
    before = state(folder)
    with pytest.raises(BadInput, match="cannot build"):
        export(folder, 8, build_here=True)
    assert state(folder) == before
    assert {path.name for path in folder.iterdir()} == {*WRITTEN, "build", "mine"}


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "net"
    export(folder, 4, build_here=False)
    before = state(folder)

    def full(*args: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def build(folder: Path) -> Path:
        monkeypatch.setattr(shutil, "copy2", full)
        monkeypatch.setattr(shutil, "copytree", full)
        raise BadInput("cannot build")

    monkeypatch.setattr(verb, "missing_tools", list)
    monkeypatch.setattr(verb, "build", build)
    with pytest.raises(BadInput, match="cannot build"):
        export(folder, 8, build_here=True)
    assert state(folder) == before


@pytest.mark.parametrize("exists", [False, True])
def test_a_new_folder_holds_nothing(no_build: None, tmp_path: Path, exists: bool) -> None:
    folder = tmp_path / "net"
    if exists:
        folder.mkdir()
    with pytest.raises(BadInput, match="cannot build"):
        export(folder, 8, build_here=True)
    assert list(tmp_path.rglob("*")) == [folder] * exists
