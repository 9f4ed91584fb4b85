"""Build an exported folder where a compiler is at hand, and compare it with the module."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from nnstretch.errors import BadInput, Mismatch
from nnstretch.export.cpp.project import MARKER
from nnstretch.export.onnx.convert import check_close

BUILD_FOLDER = "build"
TIMEOUT_S = 600


def missing_tools() -> list[str]:
    """Return the programs that a build needs and this machine lacks."""
    needed = {"cmake": ("cmake",), "a C++ compiler": ("c++", "g++", "clang++")}
    return [what for what, names in needed.items() if not any(map(shutil.which, names))]


def build(folder: Path) -> Path:
    """Configure and build an exported folder as its README says; return the runner.

    Raises BadInput with the compiler's first error where that fails.
    """
    if not (folder / MARKER).is_file():
        raise BadInput(f"cannot build {folder}, it holds no exported network, export one first")
    target = folder / BUILD_FOLDER
    run_tool(["cmake", "-S", str(folder), "-B", str(target), "-DCMAKE_BUILD_TYPE=Release"], folder)
    run_tool(["cmake", "--build", str(target), "--target", "run", "--parallel", "2"], folder)
    return target / "run"


def run_tool(command: Sequence[str], folder: Path, timeout_s: float = TIMEOUT_S) -> None:
    """Run a program of the build. Raises BadInput with the line that says what went wrong."""
    try:
        done = run_group(command, timeout_s)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadInput(f"cannot build {folder}, {command[0]}, {error}") from error
    if done.returncode:
        lines = (done.stdout + done.stderr).splitlines()
        errors = [line for line in lines if "error" in line.lower()] or lines[-1:]
        raise BadInput(f"cannot build {folder}, {command[0]} failed, {' '.join(errors[:1])[:300]}")


def run_group(command: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a program; what breaks it off ends all processes that it has started, such as compilers.

    Raises TimeoutExpired.
    """
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as process:
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()  # until the last of them has closed its end
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def run_network(
    runner: Path, inputs: Sequence[np.ndarray], shapes: int, options: Sequence[str] = ()
) -> list[np.ndarray]:
    """Compute the outputs of a built network; `shapes`: how many outputs it has."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [str(runner), *options]
        for number, array in enumerate(inputs):
            path = Path(scratch) / f"input{number}.npy"
            np.save(path, np.asarray(array, np.float32, order="C"))
            command += ["--input", str(path)]
        outputs = [Path(scratch) / f"output{number}.npy" for number in range(shapes)]
        for path in outputs:
            command += ["--output", str(path)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise Mismatch(f"{runner} did not end in {TIMEOUT_S} s, export, C++") from error
        if done.returncode:
            raise Mismatch(f"{runner} failed, export, {done.stderr.strip()[:300]}")
        return [np.load(path, allow_pickle=False) for path in outputs]


def compare(
    runner: Path, inputs: Sequence[np.ndarray], expected: Sequence[np.ndarray], name: str
) -> float:
    """Return the largest absolute difference from the module. Raises Mismatch above rounding."""
    computed = run_network(runner, inputs, len(expected))
    pairs = zip(expected, computed, strict=True)
    return max(check_close(reference, output, f"C++ of {name}") for reference, output in pairs)
