"""The runtime under many threads, and its readers under broken bytes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from support.cpp import CppRuntime, cpp_runtime  # noqa: E402, F401
from support.scripts import load_command  # noqa: E402

load_command("cpp_safety")

from seed_files import write_seeds  # noqa: E402

from nnstretch.files.package_data import package_data  # noqa: E402

HOME = package_data("cpp")
READERS = (
    *("weights", "sha256", "npy", "json", "suggestion", "view", "whole_file"),
    *("regular_file", "error"),
)


def test_inferences_of_many_threads_end_once_and_nothing_is_allocated(
    cpp_runtime: CppRuntime,  # noqa: F811
    tmp_path: Path,
) -> None:
    program = cpp_runtime.link([HOME / "tests" / "stress.cpp"], tmp_path / "stress")
    done = subprocess.run(
        [program, "800"], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 11
    for line in lines:
        assert " 800 ended: " in line
        assert " 0 wrong, 0 allocations" in line


@pytest.mark.slow
def test_readers_refuse_broken_bytes_under_address_sanitizer(tmp_path: Path) -> None:
    write_seeds(tmp_path)
    sources = [HOME / "src" / f"{name}.cpp" for name in READERS]
    sources += [HOME / "tests" / "fuzz.cpp", HOME / "tools" / "workload.cpp"]
    folders = [f"-I{HOME / name}" for name in ("include", "src", "tools")]
    options = ["-std=c++17", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    program = tmp_path / "fuzz"
    command = ["g++", *options, *folders, *map(str, sources), "-o", str(program)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode and "asan" in built.stderr:
        pytest.skip("the compiler has no AddressSanitizer")
    assert built.returncode == 0, built.stderr[:2000]
    done = subprocess.run(
        [program, "1.5", tmp_path], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
