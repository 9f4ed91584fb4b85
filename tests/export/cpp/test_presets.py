"""The presets of an exported folder, as CMake reads them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from support.cpp import translate_module  # noqa: E402
from torch import nn  # noqa: E402

from nnstretch.export.cpp.build import missing_tools  # noqa: E402
from nnstretch.export.cpp.project import write_project  # noqa: E402


def configure(folder: Path, preset: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Configure an exported folder by a preset."""
    return subprocess.run(
        ["cmake", "--preset", preset, "-S", str(folder), "-DNNSTRETCH_ONEDNN=OFF"],
        cwd=folder,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Export a layer."""
    if missing_tools():
        pytest.skip(f"without {', '.join(missing_tools())} nothing can be configured")
    write_project(translate_module(nn.Linear(3, 2), torch.zeros(1, 3)), tmp_path / "net")
    return tmp_path / "net"


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "build"), [("release", "build"), ("asan", "build-asan")])
def test_presets_configure_a_build_of_their_own(folder: Path, preset: str, build: str) -> None:
    done = configure(folder, preset)
    assert done.returncode == 0, done.stderr
    assert (folder / build / "CMakeCache.txt").is_file()


def test_android_reads_the_toolchain_of_the_kit_that_a_variable_names(folder: Path) -> None:
    kit = folder.parent / "kit"
    toolchain = kit / "build" / "cmake" / "android.toolchain.cmake"
    toolchain.parent.mkdir(parents=True)
    toolchain.write_text('message(STATUS "kit: ${ANDROID_ABI} ${ANDROID_PLATFORM}")\n')
    done = configure(folder, "android", ANDROID_NDK_HOME=str(kit))
    assert done.returncode == 0, done.stderr
    assert "kit: arm64-v8a android-28" in done.stdout


def test_android_without_the_kit_is_refused(folder: Path) -> None:
    done = configure(folder, "android", ANDROID_NDK_HOME="/nowhere")
    assert done.returncode == 1
    assert "/nowhere/build/cmake/android.toolchain.cmake" in done.stderr
    names = json.loads((folder / "CMakePresets.json").read_text())["configurePresets"]
    assert [each["name"] for each in names] == ["release", "asan", "tsan", "cross", "android"]
