"""The C++ runtime under sanitizers: many threads under every policy, and readers of broken bytes.

    python scripts/cpp_safety [--inferences 10000] [--seconds 60] [--out docs/results/cpp_safety.md]

Eight threads submit inferences of two networks with random deadlines, priorities and cancellations,
and close the runtime with work in flight (cpp/tests/stress.cpp): networks of sums, on which every
allocation after opening is counted, a tenth as many beside elements of vendors that fail, refuse to
prepare and support less than they said (cpp/tests/bad_vendors.cpp), and a tenth as many of two
exported networks (convolutions, pools and a join; products and norms) on each set of kernels. All
of it plain, with AddressSanitizer and UndefinedBehaviorSanitizer, with ThreadSanitizer (portable
kernels) and, a hundredth, under valgrind (portable kernels). Then weights, arrays, tables of costs,
workloads, configurations and layer calls are broken at random under AddressSanitizer
(cpp/tests/fuzz.cpp). Leaks inside oneDNN are suppressed by its library's name, nothing else is.
Whatever a sanitizer says ends the command.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from exported_pair import BUILD_S, link_stress
from seed_files import write_seeds

from nnstretch.bench.commands import command_line, command_parser, run_command
from nnstretch.bench.markdown import markdown_table
from nnstretch.errors import BadInput, Mismatch
from nnstretch.export.cpp.build import run_tool
from nnstretch.files.atomic import write_text
from nnstretch.files.package_data import package_data

PAGE = Path("docs/results/cpp_safety.md")
SANITIZERS = {"": "none", "address": "address, undefined", "thread": "thread"}
SHARE = 10
"""Under a sanitizer one in so many inferences is run, under valgrind one in as many of those."""
FLAGS = {name: [f"-fsanitize={words.replace(' ', '')}", "-g"] for name, words in SANITIZERS.items()}
FLAGS[""] = []
VALGRIND = ("valgrind", "--error-exitcode=9", "--leak-check=full", "--quiet")
KERNELS = {"": ("portable", "onednn"), "address": ("portable", "onednn"), "thread": ("portable",)}
LIBRARY = "libdnnl"


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
    """Run everything; return a row for each program, sanitizer and policy."""
    cells: list[list[object]] = []
    for sanitizer, words in SANITIZERS.items():
        target = folder / (sanitizer or "plain")
        build(target, sanitizer)
        program, few = target / "stress", inferences // SHARE
        pair, *weights = link_stress(target / "pair", target, FLAGS[sanitizer])
        cells += stress_rows(words, "", program, few if sanitizer else inferences)
        cells += stress_rows(words, ", vendors", program, few, "all", "vendors")
        for kernels in KERNELS[sanitizer]:
            cells += stress_rows(words, f", {kernels}", pair, few, "all", kernels, *weights)
        if not sanitizer:
            fewer = few // SHARE
            checked = "valgrind"
            cells += stress_rows(checked, "", *VALGRIND, program, fewer)
            cells += stress_rows(checked, ", vendors", *VALGRIND, program, fewer, "all", "vendors")
            portable = (pair, fewer, "all", "portable", *weights)
            cells += stress_rows(checked, ", portable", *VALGRIND, *portable)
        if sanitizer == "address":
            write_seeds(folder)
            found = output_of(target / "fuzz", seconds, folder).strip()
            cells.append([words, f"broken files, {seconds:g} s", found])
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
    missing = [name for name in ("valgrind", "cmake", "g++") if not shutil.which(name)]
    if missing:
        raise BadInput(f"cannot run everything, apt-get install {' '.join(missing)}")
    with tempfile.TemporaryDirectory() as scratch:
        suppressed = Path(scratch) / "leaks.txt"
        suppressed.write_text(f"leak:{LIBRARY}\n")
        os.environ["LSAN_OPTIONS"] = f"suppressions={suppressed}:print_suppressions=0"
        write_text(args.out, page(rows(Path(scratch), args.inferences, args.seconds)))
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
