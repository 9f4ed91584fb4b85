"""Random workloads on the virtual clocks of Python and C++: the same spans, to the bit.

    python scripts/cpp_parity [--workloads 300] [--tasks 1000000] [--out docs/results/cpp_parity.md]

A workload is drawn from a seed: graphs, costs with ties, zeros and pairs that cannot run, costs that
the policy believes wrongly, arrivals at equal times, deadlines, priorities, queue limits. Every
policy that both have plays every workload; all spans have to be equal in order, place, start and
end. Then one large workload, chains at 0.7 of capacity, says how many tasks a second the C++ clock
does, the best of three runs.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
from pathlib import Path

from random_workloads import POLICIES, draw_chains, draw_workload
from virtual_clocks import run_in_cpp, spans_in_cpp, spans_in_python

from nnstretch.bench.commands import command_line, command_parser, run_command
from nnstretch.bench.markdown import markdown_table
from nnstretch.errors import Mismatch
from nnstretch.export.cpp.build import run_tool
from nnstretch.files.atomic import write_text
from nnstretch.files.package_data import package_data

PAGE = Path("docs/results/cpp_parity.md")
TURNS = 3


def build_clock(folder: Path) -> Path:
    """Build the C++ clock; return the program."""
    source = str(package_data("cpp"))
    run_tool(["cmake", "-S", source, "-B", str(folder), "-DNNSTRETCH_TESTS=ON"], folder)
    run_tool(["cmake", "--build", str(folder), "--target", "simulate", "--parallel", "2"], folder)
    return folder / "simulate"


def equal_spans(program: Path, policy: str, workloads: int, folder: Path) -> int:
    """Return how many spans of the first workloads are equal. Raises Mismatch at the first that
    is not.
    """
    spans = 0
    for seed in range(workloads):
        settings = draw_workload(seed, policy)
        expected = spans_in_python(settings)
        if spans_in_cpp(program, settings, folder) != expected:
            raise Mismatch(f"spans differ, {policy}, workload {seed}")
        spans += len(expected)
    return spans


def rows(program: Path, workloads: int, tasks: int, folder: Path) -> list[list[object]]:
    """Compare and time every policy."""
    cells: list[list[object]] = []
    for policy in POLICIES:
        spans = equal_spans(program, policy, workloads, folder)
        rate = "-"
        if policy != "planned":
            large = draw_chains(tasks, policy)
            rates = [run_in_cpp(program, large, folder)["tasks_per_s"] for _ in range(TURNS)]
            rate = f"{max(rates):,.0f}"
        cells.append([policy, workloads, f"{spans:,}", rate])
        print(*cells[-1], file=sys.stderr)
    return cells


def page(cells: list[list[object]]) -> str:
    """Return the page of results."""
    lines = [
        "# Scheduling in C++ and Python",
        "",
        *(__doc__ or "").split("\n\n")[0:1],
        "",
        (__doc__ or "").split("\n\n")[2].strip(),
        "",
        f"Made by `{command_line()}`, Python {platform.python_version()}, one core.",
        "",
        *markdown_table(("policy", "workloads", "equal spans", "C++ tasks/s"), cells),
        "",
    ]
    return "\n".join(lines)


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = command_parser(__doc__)
    parser.add_argument("--workloads", type=int, default=300, metavar="N", help="by policy")
    parser.add_argument(
        "--tasks", type=int, default=1_000_000, metavar="N", help="of the large one"
    )
    parser.add_argument("--build", type=Path, metavar="FOLDER", help="keep the build there")
    parser.add_argument("--out", type=Path, default=PAGE, metavar="FILE.md", help="the page")
    return parser


def main() -> int:
    """Run the command."""
    args = arguments().parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        program = build_clock(args.build or folder / "build")
        write_text(args.out, page(rows(program, args.workloads, args.tasks, folder)))
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
