"""The C++ runtime, built once, and networks built against it."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from nnstretch.capture.torch_export import trace
from nnstretch.export.cpp.build import missing_tools, run_network
from nnstretch.export.cpp.program import CppProgram
from nnstretch.export.cpp.project import write_project
from nnstretch.export.cpp.translate import translate
from nnstretch.files.package_data import package_data

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror"]

TOOLS = frozenset({"simulate"})
"""Files of `cpp/tools` with a `main`."""


@dataclass(frozen=True)
class CppRuntime:
    """A folder with libnnstretch_runtime.a."""

    folder: Path

    @property
    def libraries(self) -> list[str]:
        """Return the files of the kernel library that CMake found, none without one."""
        return (self.folder / "libraries.txt").read_text().split()

    @property
    def kernel_sets(self) -> tuple[str, ...]:
        """Return the names of the kernel sets that were built."""
        return ("portable", "onednn") if self.libraries else ("portable",)

    @property
    def compiler(self) -> str:
        """Return the C++ compiler."""
        return shutil.which("g++") or shutil.which("clang++") or "c++"

    def compile(self, arguments: Sequence[str | Path], *includes: Path) -> None:
        """Run the compiler with the runtime's headers; warnings are errors."""
        home = package_data("cpp")
        folders = [home / "include", home / "src", *includes]
        command = [self.compiler, "-std=c++17", "-O1", "-ffp-contract=off", *WARNINGS]
        command += [f"-I{folder}" for folder in folders]
        command += map(str, arguments)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:3000]

    def link(self, sources: Sequence[Path], target: Path, *includes: Path) -> Path:
        """Compile sources against the runtime into a program."""
        archive = self.folder / "libnnstretch_runtime.a"
        libraries = [*self.libraries, "-lpthread", "-ldl"]
        self.compile([*sources, archive, *libraries, "-o", target], *includes)
        return target

    def tool(self, name: str, folder: Path) -> Path:
        """Build a program of `cpp/tools`."""
        tools = package_data("cpp") / "tools"
        sources = [path for path in tools.glob("*.cpp") if path.stem not in TOOLS]
        return self.link([tools / f"{name}.cpp", *sources], folder / name)

    def build(self, folder: Path) -> Path:
        """Build the runner of an exported folder."""
        target = folder / "build" / "run"
        target.parent.mkdir(exist_ok=True)
        return self.link([folder / "network.cpp", self.runner_object(folder)], target, folder)

    def runner_object(self, folder: Path) -> Path:
        """Compile the runner, once for all networks whose headers differ in comments only."""
        lines = (folder / "network.hpp").read_text().splitlines()
        code = [line for line in lines if not line.startswith("//")]
        header = sha256("\n".join(code).encode()).hexdigest()
        target = self.folder / f"run_{header[:16]}.o"
        with (self.folder / "runner.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                run = package_data("cpp") / "src" / "run.cpp"
                self.compile(["-c", run, "-o", target], folder)
        return target


@pytest.fixture(scope="session")
def cpp_runtime(tmp_path_factory: pytest.TempPathFactory) -> CppRuntime:
    """Build the runtime with little optimisation, once for all processes of a test run."""
    if missing_tools():
        pytest.skip(f"without {', '.join(missing_tools())} nothing can be built")
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / "cpp_runtime"
    with (shared / "cpp_runtime.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "built").exists():
            build_runtime(folder)
            (folder / "built").touch()
    return CppRuntime(folder)


def build_runtime(folder: Path) -> None:
    """Build the runtime into a folder."""
    source = str(package_data("cpp"))
    # A type of build whose flags the project does not set.
    flags = [
        "-DNNSTRETCH_STRICT=ON",
        "-DCMAKE_BUILD_TYPE=MinSizeRel",
        "-DCMAKE_CXX_FLAGS_MINSIZEREL=-O1 -DNDEBUG",
    ]
    for command in (
        ["cmake", "-S", source, "-B", str(folder), *flags],
        # The other process of the tests may have to wait for it.
        ["cmake", "--build", str(folder), "--parallel", "2"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def translate_module(
    module: nn.Module, *inputs: torch.Tensor, name: str = "network", granularity: str = "layer"
) -> CppProgram:
    """Translate a module at the shapes of its inputs."""
    captured = trace(module.eval(), inputs, name)
    return translate(captured.graph, captured.weights, granularity)


def outputs_in_cpp(
    runtime: CppRuntime, module: nn.Module, inputs: Sequence[torch.Tensor], folder: Path
) -> list[np.ndarray]:
    """Return what a module's C++ computes, with every kernel set alike to 1e-4."""
    program = translate_module(module, *inputs)
    write_project(program, folder)
    runner = runtime.build(folder)
    arrays = [x.numpy() for x in inputs]
    by_set = [
        run_network(runner, arrays, len(program.outputs), ("--kernels", kernels))
        for kernels in runtime.kernel_sets
    ]
    for computed in by_set[1:]:
        assert_close(computed, by_set[0])
    return by_set[0]


def outputs_in_torch(module: nn.Module, inputs: Sequence[torch.Tensor]) -> list[np.ndarray]:
    """Return what PyTorch computes."""
    with torch.no_grad():
        results = module.eval()(*inputs)
    return [result.detach().numpy() for result in torch.utils._pytree.tree_leaves(results)]


def assert_close(computed: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    """Compare arrays to 1e-4 of the largest magnitude of each; what is infinite has to be equal."""
    assert len(computed) == len(expected)
    for number, (array, reference) in enumerate(zip(computed, expected, strict=True)):
        assert array.shape == reference.shape, f"output {number}"
        finite = np.isfinite(reference)
        np.testing.assert_array_equal(array[~finite], reference[~finite], f"output {number}")
        scale = max(float(np.abs(reference[finite]).max(initial=0.0)), 1e-6)
        error = float(np.abs(array[finite] - reference[finite]).max(initial=0.0)) / scale
        assert error < 1e-4, f"output {number}: {error:.1e} of the largest magnitude"
