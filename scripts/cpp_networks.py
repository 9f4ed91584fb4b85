"""Networks of torchvision and timm as C++: translated, built, compared with PyTorch, timed.

    python scripts/cpp_networks.py [--only PATTERN ...] [--timm 40] [--out docs/results/cpp_networks.md]

Each network is drawn with random weights and norm statistics, translated, compiled against one
build of the runtime, and compared on three inputs (largest difference over largest magnitude).
Times are the least of five turns of each in turns, one thread: PyTorch eager, and the C++ program
with portable kernels. Networks that are refused are listed with the operators that are missing.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
import torchvision
from torch import nn

from nnstretch.bench.commands import command_line, command_parser
from nnstretch.bench.markdown import markdown_table
from nnstretch.capture.torch_export import trace
from nnstretch.errors import NnstretchError
from nnstretch.export.cpp.build import run_network
from nnstretch.export.cpp.memory import plan_arena
from nnstretch.export.cpp.project import write_project
from nnstretch.export.cpp.translate import translate
from nnstretch.files.atomic import write_text
from nnstretch.files.package_data import package_data

INPUTS = 3
TURNS = 5
LIMIT = 1e-4
SEED = 0


@dataclass(frozen=True)
class NetworkRow:
    """What became of one network."""

    name: str
    calls: int = 0
    error: float = 0.0
    """Largest difference over largest magnitude, of three inputs."""
    build_s: float = 0.0
    eager_ms: float = 0.0
    cpp_ms: float = 0.0
    arena_mb: float = 0.0
    alive_mb: float = 0.0
    reason: str = ""
    """Why it was refused, else empty."""


def torchvision_names() -> list[str]:
    """Return torchvision's classifiers of still images."""
    names = torchvision.models.list_models(module=torchvision.models)
    return [f"torchvision:{name}" for name in names]


def timm_names(count: int) -> list[str]:
    """Return networks of timm, one a family, drawn by a seed among small ones."""
    families: dict[str, str] = {}
    for name in timm.list_models():
        families.setdefault(timm.models.model_entrypoint(name).__module__, name)
    drawn = random.Random(SEED).sample(sorted(families.values()), min(count, len(families)))
    return [f"timm:{name}" for name in sorted(drawn)]


def load(name: str) -> tuple[nn.Module, torch.Tensor]:
    """Return a network with random weights and norm statistics, and an input."""
    torch.manual_seed(SEED)
    zoo, _, model = name.partition(":")
    if zoo == "timm":
        module = timm.create_model(model, pretrained=False)
        shape = module.default_cfg.get("input_size", (3, 224, 224))
    else:
        options: dict[str, Any] = {"weights": None}
        if model in ("googlenet", "inception_v3"):
            options["init_weights"] = False
        module = torchvision.models.get_model(model, **options)
        shape = (3, 299, 299) if model == "inception_v3" else (3, 224, 224)
    for tensor in module.parameters():
        # Heads that start at zero would make every comparison true.
        if float(tensor.detach().abs().max()) == 0.0:
            nn.init.normal_(tensor, std=0.02)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.uniform_(-0.3, 0.3)
            part.running_var.uniform_(0.5, 1.5)
    return module.eval(), torch.randn(1, *shape)


def build_runtime(folder: Path) -> Path:
    """Build the runtime once; return its archive."""
    source = str(package_data("cpp"))
    for command in (
        ["cmake", "-S", source, "-B", str(folder), "-DCMAKE_BUILD_TYPE=Release"],
        ["cmake", "--build", str(folder), "--parallel", "2"],
    ):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder / "libnnstretch_runtime.a"


def build_network(folder: Path, runtime: Path) -> Path:
    """Compile one exported network against the runtime; return its runner."""
    home = package_data("cpp")
    includes = [f"-I{path}" for path in (home / "include", home / "src", folder)]
    runner = folder / "build" / "run"
    runner.parent.mkdir()
    libraries = (runtime.parent / "libraries.txt").read_text().split()
    sources = [str(folder / "network.cpp"), str(home / "src" / "run.cpp"), str(runtime), *libraries]
    command = ["c++", "-std=c++17", "-O1", *includes, *sources, "-lpthread", "-ldl"]
    subprocess.run([*command, "-o", str(runner)], check=True)
    return runner


def examine(name: str, work: Path, runtime: Path) -> NetworkRow:
    """Translate, build, compare and time one network."""
    module, x = load(name)
    try:
        captured = trace(module, x, name)
        program = translate(captured.graph, captured.weights)
    except NnstretchError as error:
        return NetworkRow(name, reason=str(error))
    folder = work / name.replace(":", "_")
    write_project(program, folder)
    begun = time.perf_counter()
    runner = build_network(folder, runtime)
    build_s = time.perf_counter() - begun
    error = 0.0
    for _ in range(INPUTS):
        x = torch.randn_like(x)
        with torch.no_grad():
            expected = module(x).numpy()
        computed = run_network(runner, [x.numpy()], 1)[0]
        largest = float(np.abs(expected).max())
        error = max(error, float(np.abs(computed - expected).max()) / largest)
    eager_ms, cpp_ms = times(module, x, runner)
    arena = plan_arena(program.groups)
    sizes = (arena.size * 4e-6, arena.peak_alive * 4e-6)
    return NetworkRow(name, len(program.calls), error, build_s, eager_ms, cpp_ms, *sizes)


def times(module: nn.Module, x: torch.Tensor, runner: Path) -> tuple[float, float]:
    """Return the least milliseconds of eager PyTorch and of the program, in turns."""
    eager_ms, cpp_ms = [], []
    for _ in range(TURNS):
        begun = time.perf_counter()
        with torch.no_grad():
            module(x)
        eager_ms.append((time.perf_counter() - begun) * 1000)
        done = subprocess.run(
            [str(runner), "--repeat", "2", "--json"], check=True, capture_output=True, text=True
        )
        cpp_ms.append(json.loads(done.stdout)["latency_ms"]["min"])
    return min(eager_ms), min(cpp_ms)


def page(rows: list[NetworkRow]) -> str:
    """Return the page of results."""
    built = [row for row in rows if not row.reason]
    good = [row for row in built if row.error <= LIMIT]
    lines = [
        "# Networks as C++",
        "",
        f"{len(rows)} networks: {len(built)} translated and built, {len(good)} of them within"
        f" {LIMIT:g} of PyTorch (largest difference over largest magnitude, {INPUTS} inputs each),"
        f" {len(rows) - len(built)} refused. Made by `{command_line()}`, one"
        " thread, portable kernels; times are the least of five in turns on a shared machine.",
        "",
    ]
    heads = ("network", "calls", "error", "build s", "eager ms", "C++ ms", "arena MB", "alive MB")
    table: list[tuple[str, ...]] = []
    for row in built:
        numbers = (f"{row.eager_ms:.1f}", f"{row.cpp_ms:.1f}", f"{row.arena_mb:.2f}")
        error, build_s = f"{row.error:.1e}", f"{row.build_s:.1f}"
        table.append((row.name, str(row.calls), error, build_s, *numbers, f"{row.alive_mb:.2f}"))
    lines += markdown_table(heads, table)
    refused = [(row.name, row.reason) for row in rows if row.reason]
    if refused:
        lines += ["", "Refused:", "", *markdown_table(("network", "why"), refused)]
    return "\n".join([*lines, ""])


def arguments() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = command_parser(__doc__)
    parser.add_argument("--only", nargs="*", default=["*"], help="patterns of names")
    parser.add_argument("--timm", type=int, default=40, help="how many networks of timm")
    parser.add_argument("--out", type=Path, default=None, help="page to write, after each network")
    return parser


def main() -> int:
    """Examine the networks and write the page."""
    args = arguments().parse_args()
    torch.set_num_threads(1)
    rows: list[NetworkRow] = []
    with tempfile.TemporaryDirectory() as folder:
        runtime = build_runtime(Path(folder) / "runtime")
        for name in [*torchvision_names(), *timm_names(args.timm)]:
            if not any(fnmatch.fnmatch(name, pattern) for pattern in args.only):
                continue
            with tempfile.TemporaryDirectory(dir=folder) as work:
                rows.append(examine(name, Path(work), runtime))
            print(rows[-1], flush=True)
            if args.out is not None:
                write_text(args.out, page(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
