"""The runtime under many threads, and its readers under broken bytes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from support.cpp import CppRuntime, cpp_runtime  # noqa: E402, F401
from support.scripts import load_command  # noqa: E402

load_command("cpp_safety")

from exported_pair import link_stress  # noqa: E402
from seed_files import write_seeds  # noqa: E402

from nnstretch.files.package_data import package_data  # noqa: E402

HOME = package_data("cpp")
READERS = (
    *("weights", "sha256", "npy", "json", "suggestion", "view", "whole_file"),
    *("regular_file", "error"),
)


STRESS = ("stress", "stress_subjects", "bad_vendors")


@pytest.fixture(scope="module")
def stress(cpp_runtime: CppRuntime, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """Build the program of many threads."""
    sources = [HOME / "tests" / f"{name}.cpp" for name in STRESS]
    return cpp_runtime.link(sources, tmp_path_factory.mktemp("stress") / "stress")


def lines_of(stress: Path, *words: str) -> list[str]:
    """Run the program; return a line for each policy."""
    done = subprocess.run(
        [stress, "800", *words], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 11
    assert all(" 800 ended: " in line for line in lines)
    return lines


def test_inferences_of_many_threads_end_once_and_nothing_is_allocated(stress: Path) -> None:
    for line in lines_of(stress):
        assert " 0 wrong, 0 allocations" in line


@pytest.mark.slow
def test_elements_that_fail_and_lie_end_their_inferences_only(stress: Path) -> None:
    for line in lines_of(stress, "all", "vendors"):
        assert " failed, " in line
        assert " 0 wrong, " in line


@pytest.mark.slow
def test_inferences_of_exported_networks_end_once_on_every_set_of_kernels(
    cpp_runtime: CppRuntime,  # noqa: F811
    tmp_path: Path,
) -> None:
    program, *weights = link_stress(tmp_path / "pair", cpp_runtime.folder)
    for kernels in cpp_runtime.kernel_sets:
        allocations = "0" if kernels == "portable" else "uncounted"
        for line in lines_of(Path(program), "all", kernels, *weights):
            assert f" 0 wrong, {allocations} allocations" in line


def prints_ok(runtime: CppRuntime, name: str, folder: Path) -> None:
    """Build a program of `cpp/tests` and run it."""
    program = runtime.link([HOME / "tests" / f"{name}.cpp"], folder / name)
    command = [program, folder / f"{name}.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


@pytest.mark.slow
def test_memory_of_places_without_room_is_given_back(
    cpp_runtime: CppRuntime,  # noqa: F811
    tmp_path: Path,
) -> None:
    prints_ok(cpp_runtime, "no_room", tmp_path)


@pytest.mark.slow
def test_a_runtime_without_threads_for_all_elements_is_closed(
    cpp_runtime: CppRuntime,  # noqa: F811
    tmp_path: Path,
) -> None:
    prints_ok(cpp_runtime, "no_threads", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["runtimes", "sessions", "tensors"])
def test_a_program_of_the_runtime_finds_nothing_wrong(
    cpp_runtime: CppRuntime,  # noqa: F811
    name: str,
    tmp_path: Path,
) -> None:
    prints_ok(cpp_runtime, name, tmp_path)


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
