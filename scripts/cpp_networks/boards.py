"""Networks for another processor: cross-compiled for aarch64, run under qemu-user, compared.

Nothing of it is timed: an emulator says nothing about a board. Then the smallest network is built
by clang 14 with all warnings as errors, and run under valgrind; and the runtime, its tests and
tools are built by g++ and clang 14, and those tests run.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from cpp_trial import LIMIT
from cpp_zoo import Subject, load

from nnstretch.bench.commands import command_line
from nnstretch.bench.markdown import markdown_table
from nnstretch.capture.torch_export import trace
from nnstretch.errors import BadInput, Mismatch
from nnstretch.export.cpp.build import run_tool
from nnstretch.export.cpp.project import write_project
from nnstretch.export.cpp.translate import translate
from nnstretch.files.atomic import write_text
from nnstretch.files.package_data import package_data

NETWORKS = ("small:lenet", "torchvision:mobilenet_v2", "small:branches")
SMALLEST = "small:lenet"
SYSROOT = "/usr/aarch64-linux-gnu"
WORKERS = "cpu,cpu"
BUILD_S = 3600
NEEDED = {
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
    "qemu-aarch64": "qemu-user",
    "clang++-14": "clang-14",
    "valgrind": "valgrind",
    "cmake": "cmake",
}
"""Programs, and Debian's packages of them."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument("--out", type=Path, default=Path("docs/results/cpp_boards.md"))


def run(args: argparse.Namespace) -> int:
    """Build, run, compare, and write the page. Raises BadInput, and Mismatch for wrong numbers."""
    missing = [package for program, package in NEEDED.items() if not shutil.which(program)]
    if missing:
        raise BadInput(f"cannot build for boards, apt-get install {' '.join(missing)}")
    torch.set_num_threads(1)
    rows: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in NETWORKS:
            work = Path(folder) / name.replace(":", "_")
            rows.append(on_board(name, work))
            print(rows[-1], flush=True)
        rows += on_host(Path(folder) / SMALLEST.replace(":", "_"))
        rows += runtime_rows(Path(folder))
    write_text(args.out, page(rows))
    return 0


def exported(name: str, folder: Path) -> Subject:
    """Write a network's folder, an input and PyTorch's answer."""
    folder.mkdir()
    subject = load(name, folder)
    captured = trace(subject.module, subject.example, name)
    program = translate(captured.graph, captured.weights, "layer", subject.placement)
    write_project(program, folder / "net")
    np.save(folder / "x.npy", subject.example.numpy())
    with torch.no_grad():
        np.save(folder / "y.npy", subject.module(subject.example).numpy())
    return subject


def on_board(name: str, folder: Path) -> tuple[str, ...]:
    """Cross-compile a network and run it under the emulator on one worker and on two."""
    subject = exported(name, folder)
    source = folder / "net"
    run_tool(["cmake", "--preset", "cross", "-S", str(source)], source)
    run_tool(["cmake", "--build", str(source / "build-cross"), "--parallel", "2"], source)
    emulator = ["qemu-aarch64", "-L", SYSROOT, str(source / "build-cross" / "run")]
    planned = sorted({place for place in map(subject.placement, modules(subject)) if place})
    errors = [
        error_of(emulator, folder, ["--elements", elements, "--repeat", "2"])
        for elements in ("cpu", WORKERS)
    ]
    branches = f"branches for {' and '.join(planned)}" if planned else "-"
    return (name, "aarch64, g++, qemu", branches, *(f"{error:.1e}" for error in errors))


def modules(subject: Subject) -> list[str]:
    """Return the paths of a module's parts."""
    return [path for path, _ in subject.module.named_modules()]


def error_of(runner: Sequence[str], folder: Path, options: Sequence[str]) -> float:
    """Return the largest difference over the largest magnitude. Raises Mismatch above the limit."""
    answer = folder / "answer.npy"
    files = ["--input", str(folder / "x.npy"), "--output", str(answer)]
    run_tool([*runner, *files, *options], folder)
    expected = np.load(folder / "y.npy")
    error = float(np.abs(np.load(answer) - expected).max() / np.abs(expected).max())
    if not error <= LIMIT:
        raise Mismatch(f"{' '.join(runner)}, off by {error:.1e} of the largest magnitude, boards")
    return error


def on_host(folder: Path) -> list[tuple[str, ...]]:
    """Build the smallest network by clang 14, and run it under valgrind."""
    source = folder / "net"
    checker = ("valgrind", "--error-exitcode=9", "--leak-check=full", "--quiet")
    turns: dict[str, Callable[[], float]] = {
        "this host, clang 14": lambda: error_of(
            [built(source, source / "build-clang", "clang++-14", "clang-14", "AUTO")],
            folder,
            ["--elements", WORKERS],
        ),
        "this host, g++, valgrind": lambda: error_of(
            [*checker, built(source, source / "build-plain", "g++", "gcc", "OFF")],
            folder,
            ["--elements", WORKERS, "--repeat", "20", "--places", "3"],
        ),
    }
    return [(SMALLEST, how, "-", "-", f"{turn():.1e}") for how, turn in turns.items()]


def runtime_rows(folder: Path) -> list[tuple[str, ...]]:
    """Build the runtime with its tests and tools by both compilers, and run the tests."""
    rows: list[tuple[str, ...]] = []
    for name, (cxx, c) in {"g++": ("g++", "gcc"), "clang 14": ("clang++-14", "clang-14")}.items():
        target = folder / cxx
        built(package_data("cpp"), target, cxx, c, "AUTO", "-DNNSTRETCH_TESTS=ON")
        run_tool(["ctest", "--test-dir", str(target), "--output-on-failure"], folder)
        rows.append(("the runtime, its tests and tools", f"this host, {name}", "-", "-", "ctest"))
        print(rows[-1], flush=True)
    return rows


def built(source: Path, target: Path, cxx: str, c: str, library: str, *options: str) -> str:
    """Build a folder by a compiler, warnings being errors; return the runner if it has one."""
    compilers = [f"-DCMAKE_CXX_COMPILER={cxx}", f"-DCMAKE_C_COMPILER={c}"]
    options = (*compilers, f"-DNNSTRETCH_ONEDNN={library}", "-DNNSTRETCH_STRICT=ON", *options)
    run_tool(["cmake", "-S", str(source), "-B", str(target), *options], source)
    run_tool(["cmake", "--build", str(target), "--parallel", "2"], source, BUILD_S)
    return str(target / "run")


def page(rows: Sequence[tuple[str, ...]]) -> str:
    """Return the page of results."""
    heads = ("network", "built for and by", "plan", "error, one worker", "error, two workers")
    lines = [
        "# Networks on boards",
        "",
        "Largest difference from PyTorch over the largest magnitude; every build has -Wall -Wextra"
        " -Wpedantic -Wshadow -Wconversion -Werror, and valgrind ends with an error at anything it"
        " says. Times under an emulator mean nothing, none is reported; no board was tried.",
        "",
        f"Made by `{command_line()}`.",
        "",
        *markdown_table(heads, list(rows)),
    ]
    return "\n".join([*lines, ""])
