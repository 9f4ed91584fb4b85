"""One network: translated, built, compared with PyTorch on both kernel sets, timed."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from cpp_zoo import load
from torch import nn

from nnstretch.capture.torch_export import trace
from nnstretch.errors import Mismatch, NnstretchError
from nnstretch.export.cpp.build import run_tool
from nnstretch.export.cpp.memory import plan_arena
from nnstretch.export.cpp.project import write_project
from nnstretch.export.cpp.translate import translate
from nnstretch.files.package_data import package_data

INPUTS = 3
REPEATS = 4
SLOW_MS = 1000.0
"""Networks that take longer are computed once for each input."""
LIMIT = 1e-4
SETS = ("portable", "onednn")


@dataclass(frozen=True)
class NetworkRow:
    """What became of one network."""

    name: str
    calls: int = 0
    library_calls: int = 0
    """Of these, how many oneDNN computes."""
    portable_error: float = 0.0
    """Largest difference over largest magnitude, of three inputs."""
    onednn_error: float = 0.0
    translate_s: float = 0.0
    build_s: float = 0.0
    eager_ms: float = 0.0
    portable_ms: float = 0.0
    onednn_ms: float = 0.0
    arena_mb: float = 0.0
    alive_mb: float = 0.0
    """Most bytes alive at once where calls run one after the other."""
    least_mb: float = 0.0
    """What no arena is smaller than where whatever may run at once does."""
    own_error: float = 0.0
    """Of PyTorch's own answers against those in float64, where a set is beyond the limit."""
    reason: str = ""
    """Why it was refused, else empty."""

    @property
    def is_right(self) -> bool:
        """Return whether both kernel sets are within the limit."""
        return not self.reason and max(self.portable_error, self.onednn_error) <= LIMIT


@dataclass(frozen=True)
class Answer:
    """What a runner printed and wrote."""

    output: np.ndarray
    least_ms: float
    library_calls: int


def build_runtime(folder: Path) -> Path:
    """Build the runtime with both kernel sets, once; return its archive."""
    source = str(package_data("cpp"))
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DNNSTRETCH_ONEDNN=ON"]
    run_tool(["cmake", "-S", source, "-B", str(folder), *options], folder)
    run_tool(["cmake", "--build", str(folder), "--parallel", "2"], folder)
    return folder / "libnnstretch_runtime.a"


def build_network(folder: Path, runtime: Path, optimisation: str = "-O1") -> Path:
    """Compile one exported network against the runtime, which computes; return its runner."""
    home = package_data("cpp")
    includes = [f"-I{path}" for path in (home / "include", home / "src", folder)]
    runner = folder / "build" / "run"
    runner.parent.mkdir()
    libraries = (runtime.parent / "libraries.txt").read_text().split()
    sources = [str(folder / "network.cpp"), str(home / "src" / "run.cpp"), str(runtime), *libraries]
    command = ["c++", "-std=c++17", optimisation, *includes, *sources, "-lpthread", "-ldl"]
    run_tool([*command, "-o", str(runner)], folder)
    return runner


def run_once(runner: Path, kernels: str, example: np.ndarray, repeats: int) -> Answer:
    """Compute one input some times. Raises Mismatch where the program fails."""
    with tempfile.TemporaryDirectory() as scratch:
        x, y = Path(scratch) / "x.npy", Path(scratch) / "y.npy"
        np.save(x, np.asarray(example, np.float32, order="C"))
        files = ["--input", str(x), "--output", str(y)]
        command = [str(runner), *files, "--kernels", kernels, "--repeat", str(repeats), "--json"]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise Mismatch(f"{runner} failed, {ended.stderr.strip()[:300]}")
        said = json.loads(ended.stdout)
        output = np.load(y, allow_pickle=False)
    return Answer(output, said["latency_ms"]["min"], said["library_calls"])


def examine(name: str, work: Path, runtime: Path) -> NetworkRow:
    """Translate, build, compare and time one network."""
    subject = load(name, work)
    begun = time.perf_counter()
    try:
        captured = trace(subject.module, subject.example, name)
        program = translate(captured.graph, captured.weights, "layer", subject.placement)
    except NnstretchError as error:
        return NetworkRow(name, reason=str(error))
    folder = work / "network"
    arena = plan_arena(program.groups)
    write_project(program, folder)
    row = NetworkRow(
        name,
        len(program.calls),
        translate_s=time.perf_counter() - begun,
        arena_mb=arena.size * 4e-6,
        alive_mb=arena.peak_alive * 4e-6,
        least_mb=arena.least_size * 4e-6,
    )
    begun = time.perf_counter()
    runner = build_network(folder, runtime, "-O0")
    row = replace(row, build_s=time.perf_counter() - begun)
    return compared(row, subject.module, subject.example, runner)


def compared(row: NetworkRow, module: nn.Module, example: torch.Tensor, runner: Path) -> NetworkRow:
    """Return the row with errors and times: PyTorch and both kernel sets in turns."""
    inputs: list[torch.Tensor] = []
    eager_ms: list[float] = []
    errors: dict[str, list[float]] = {kernels: [] for kernels in SETS}
    least_ms: dict[str, list[float]] = {kernels: [] for kernels in SETS}
    for _ in range(INPUTS):
        x = torch.randn_like(example)
        inputs.append(x)
        repeats = 1 if eager_ms and min(eager_ms) > SLOW_MS else REPEATS
        for _ in range(min(2, repeats)):
            begun = time.perf_counter()
            with torch.no_grad():
                expected = module(x).numpy()
            eager_ms.append((time.perf_counter() - begun) * 1000)
        for kernels in SETS:
            answer = run_once(runner, kernels, x.numpy(), repeats)
            largest = float(np.abs(expected).max())
            errors[kernels].append(float(np.abs(answer.output - expected).max()) / largest)
            least_ms[kernels].append(answer.least_ms)
    beyond = max(max(values) for values in errors.values()) > LIMIT
    return replace(
        row,
        library_calls=answer.library_calls,
        own_error=own_error(module, inputs) if beyond else 0.0,
        portable_error=max(errors["portable"]),
        onednn_error=max(errors["onednn"]),
        eager_ms=min(eager_ms),
        portable_ms=min(least_ms["portable"]),
        onednn_ms=min(least_ms["onednn"]),
    )


def own_error(module: nn.Module, inputs: Sequence[torch.Tensor]) -> float:
    """Return how far PyTorch's answers are from its own in float64."""
    errors: list[float] = []
    with torch.no_grad():
        for x in inputs:
            computed = module.float()(x)
            exact = module.double()(x.double())
            errors.append(float((computed - exact).abs().max() / exact.abs().max()))
    return max(errors)
