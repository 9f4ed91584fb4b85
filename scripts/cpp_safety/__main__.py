"""The C++ runtime under sanitizers: many threads under every policy, and readers of broken bytes.

    python scripts/cpp_safety [--inferences 10000] [--seconds 60] [--out docs/results/cpp_safety.md]

Eight threads submit inferences of two networks with random deadlines, priorities and cancellations
(cpp/tests/stress.cpp): plain, with AddressSanitizer and UndefinedBehaviorSanitizer, and with
ThreadSanitizer; a tenth as many once more beside elements of vendors that fail, refuse to prepare
and support less than they said (cpp/tests/bad_vendors.cpp). Then weights, arrays, tables of costs, workloads, configurations and layer calls
are broken at random under AddressSanitizer (cpp/tests/fuzz.cpp). Then a network of convolutions, pools and sums
runs on oneDNN's kernels under AddressSanitizer, five inferences at once; leaks inside oneDNN are
suppressed by its library's name, nothing else is. Whatever a sanitizer says ends the command.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from kernel_library import BUILD_S, library_rows
from seed_files import write_seeds

from nnstretch.bench.commands import command_line, command_parser, run_command
from nnstretch.bench.markdown import markdown_table
from nnstretch.errors import Mismatch
from nnstretch.export.cpp.build import run_tool
from nnstretch.files.atomic import write_text
from nnstretch.files.package_data import package_data

PAGE = Path("docs/results/cpp_safety.md")
SANITIZERS = {"": "none", "address": "address, undefined", "thread": "thread"}
SHARE = 10
"""Under a sanitizer one in so many inferences is run."""


def build(folder: Path, sanitizer: str) -> None:
    """Build the programs of `cpp/tests`."""
    source, options = str(package_data("cpp")), f"-DNNSTRETCH_SANITIZE={sanitizer}"
    flags = [
        "-DNNSTRETCH_STRICT=ON",
        "-DNNSTRETCH_TESTS=ON",
        "-DCMAKE_CXX_FLAGS_RELEASE=-O1",
        options,
    ]
    print(f"building with {SANITIZERS[sanitizer]}", file=sys.stderr)
    run_tool(["cmake", "-S", source, "-B", str(folder), *flags], folder)
    run_tool(["cmake", "--build", str(folder), "--parallel", "2"], folder, BUILD_S)


def output_of(*command: object) -> str:
    """Return what a program printed, line by line beside. Raises Mismatch where it failed."""
    words = [str(word) for word in command]
    lines: list[str] = []
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as program:
        for line in program.stdout or ():
            print(line, end="", file=sys.stderr, flush=True)
            lines.append(line)
    if program.returncode:
        raise Mismatch(f"{words[0]} failed, safety, {''.join(lines)[-1500:]}")
    return "".join(lines)


def stress_rows(sanitizer: str, beside: str, *command: object) -> list[list[object]]:
    """Run many threads; return a row for each policy."""
    lines = [line.partition(" ") for line in output_of(*command).splitlines()]
    return [[sanitizer, policy + beside, counts.strip()] for policy, _, counts in lines]


def rows(folder: Path, inferences: int, seconds: float) -> list[list[object]]:
    """Run everything; return a row for each sanitizer and policy."""
    cells: list[list[object]] = []
    for sanitizer, words in SANITIZERS.items():
        target = folder / (sanitizer or "plain")
        build(target, sanitizer)
        count = inferences // SHARE if sanitizer else inferences
        cells += stress_rows(words, "", target / "stress", count)
        bad = ("all", "vendors")
        cells += stress_rows(words, ", vendors", target / "stress", inferences // SHARE, *bad)
        if sanitizer == "address":
            write_seeds(folder)
            found = output_of(target / "fuzz", seconds, folder).strip()
            cells.append([words, f"broken files, {seconds:g} s", found])
            cells += library_rows(folder / "blocks")
    return cells


def page(cells: list[list[object]]) -> str:
    """Return the page of results."""
    paragraphs = (__doc__ or "").split("\n\n")
    lines = [
        "# The C++ runtime under sanitizers",
        "",
        paragraphs[2].strip(),
        "",
        f"Made by `{command_line()}` on {platform.machine()}, {os.cpu_count()} cores.",
        "",
        *markdown_table(("sanitizer", "policy", "what happened"), cells),
        "",
    ]
    return "\n".join(lines)


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = command_parser(__doc__)
    parser.add_argument("--inferences", type=int, default=10_000, metavar="N", help="by policy")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="of broken files")
    parser.add_argument("--out", type=Path, default=PAGE, metavar="FILE.md", help="the page")
    return parser


def main() -> int:
    """Run the command."""
    args = arguments().parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        write_text(args.out, page(rows(Path(scratch), args.inferences, args.seconds)))
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
