"""Cycles of independent programs beside ours, their descriptions translated from ours.

Ends with status 1 where a judged number misses its limit.

--envs FOLDER holds one environment for each: `scalesim` (scalesim 3.0.0, numpy below 2), `zigzag`
(zigzag-dse 3.9.1, and six, which it does not declare), `zigzag385` (3.8.5, the same), `vela`
(ethos-u-vela 5.2.0) and `stream` (stream-dse 2.1.1, and six, Python 3.12).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from judged import JudgedClaim, Section, between, judged_table, status_of
from modelled_cases import modelled
from outside_programs import scalesim_cycles, zigzag_cycles, zigzag_own_cycles
from stream_section import stream_section
from vela_program import vela_section

from nnstretch.accelerate.machine.load_accelerator import load_accelerator
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.operator_work import MatrixShape
from nnstretch.bench.commands import command_line
from nnstretch.bench.markdown import markdown_table
from nnstretch.chip.accelerator import Accelerator, Dram, MatrixUnit, OnChipBuffer, VectorUnit
from nnstretch.files.atomic import write_text

ARRAY = 32
SIZES = (17, 48, 64, 100, 128, 200)
"""Of the products that are compared: partly multiples of the array, partly not."""
PRODUCTS = (
    (64, 64, 64),
    (100, 64, 48),
    *((SIZES[i % 6], SIZES[(i * 5 + 1) % 6], SIZES[(i * 7 + i // 6) % 6]) for i in range(20)),
)
"""The two whose cycles were published, and twenty more."""
PUBLISHED_CYCLES = (631, 775)
OWN_TEST_CYCLES = 3_703_960
"""ZigZag's test of ResNet-18 on its tpu_like; the next half cycle is left out."""
ZIGZAG_MACHINE = "zigzag-tpu-like"
ZIGZAG_CASES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("as described", ()),
    ("without vector work", ("vector.lanes=1000000",)),
)
ZIGZAG_TEXT = (
    "ZigZag searches the fastest loop order of each layer; ours counts vector work (activation, sums), too. Its own test of ResNet-18 says 3,703,960",
    "cycles, which 3.8.5 gives; 3.9.1 gives more for the same files, and as much for our description translated.",
)


def systolic(rows: int) -> ChipRates:
    """A systolic array that waits for its edges: fill = 2 rows + columns - 2."""
    unit = MatrixUnit(rows, rows, fill_cycles=3 * rows - 2)
    buffer, ddr = OnChipBuffer(1, 1.0), Dram(1.0)
    machine = Accelerator("systolic", 1, 1, 1e9, ("int8",), unit, VectorUnit(1), buffer, ddr)
    return ChipRates(machine, "int8")


def scalesim_section(envs: Path) -> Section:
    """Products on a systolic array."""
    rates = systolic(ARRAY)
    rows: list[Sequence[object]] = []
    differences: list[int] = []
    theirs = scalesim_cycles(envs, ARRAY, ARRAY, PRODUCTS)
    for (m, n, k), cycles in zip(PRODUCTS, theirs, strict=True):
        ours = round(rates.matrix_us(MatrixShape(1, m, k, n)) * 1000)
        differences.append(ours - cycles)
        rows.append([f"{m} x {n} x {k}", cycles, ours, ours - cycles])
    spread = f"{min(differences)} to {max(differences)} cycles more"
    lines = [
        f"## scalesim 3.0.0: products on {ARRAY} x {ARRAY}, weights stationary",
        "",
        f"{len(PRODUCTS)} products, ours {spread}: scalesim counts from cycle 0.",
        "",
        *markdown_table(("M x N x K", "scalesim", "ours", "difference"), rows),
    ]
    published = tuple(theirs[:2])
    shown = " ".join(map(str, published))
    limit = " ".join(map(str, PUBLISHED_CYCLES))
    claims = [
        JudgedClaim("scalesim, the two published", shown, limit, published == PUBLISHED_CYCLES),
        JudgedClaim(
            f"scalesim, ours over {len(PRODUCTS)} products, cycles more",
            f"{min(differences)} to {max(differences)}",
            "1",
            set(differences) == {1},
        ),
    ]
    return lines, claims


def zigzag_section(envs: Path) -> Section:
    """ResNet-18 through DDR, layer by layer."""
    theirs = [
        zigzag_own_cycles(envs, "zigzag385"),
        zigzag_own_cycles(envs, "zigzag"),
        zigzag_cycles(envs, load_accelerator(ZIGZAG_MACHINE)),
    ]
    rows: list[Sequence[object]] = []
    ours: list[float] = []
    for label, assume in ZIGZAG_CASES:
        result = modelled("torchvision:resnet18", ZIGZAG_MACHINE, "ddr", 1, 1, assume, "layers")
        ours.append(result.latency_us * 1000)
        ratios = [f"{ours[-1] / cycles:.2f}" for cycles in theirs]
        rows.append([label, f"{ours[-1]:,.0f}", *ratios])
    cells = [f"{cycles:,.1f}" for cycles in theirs]
    heads = "program|cycles|/ 3.8.5, its own test|/ 3.9.1, the same|/ 3.9.1, our machine translated"
    lines = [
        "## zigzag-dse 3.8.5 and 3.9.1: ResNet-18 on its `tpu_like` and on the translated `zigzag-tpu-like`",
        "",
        *ZIGZAG_TEXT,
        "",
        *markdown_table(heads.split("|"), [["ZigZag", "", *cells], *rows]),
    ]
    same = int(theirs[0]) == OWN_TEST_CYCLES
    limit = f"{OWN_TEST_CYCLES:,} and a half"
    claims = [
        JudgedClaim("ZigZag, its own test run with 3.8.5", cells[0], limit, same),
        *(
            between(f"ZigZag, ours over {name}", ours[0] / cycles, 0.5, 2.0)
            for name, cycles in zip(("3.8.5", "3.9.1"), theirs[::2], strict=True)
        ),
    ]
    return lines, claims


SECTIONS = {
    "scalesim": scalesim_section,
    "zigzag": zigzag_section,
    "vela": vela_section,
    "stream": stream_section,
}


def page(envs: Path, programs: Sequence[str]) -> tuple[str, list[JudgedClaim]]:
    """The tables as a page, and what it is judged by."""
    sections: list[str] = []
    claims: list[JudgedClaim] = []
    for name in programs:
        lines, judged = SECTIONS[name](envs)
        sections += [*lines, ""]
        claims += judged
    head = [
        "# Independent programs beside ours",
        "",
        f"`{command_line()}`",
        "",
        "Each runs in an environment of its own; descriptions are translated by the script. Modelled on both sides.",
        "",
        *judged_table(claims),
        "",
    ]
    return "\n".join([*head, *sections]), claims


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--envs", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.md")
    parser.add_argument("--programs", nargs="+", choices=SECTIONS, default=tuple(SECTIONS))


def run(args: argparse.Namespace) -> int:
    text, claims = page(args.envs, args.programs)
    write_text(args.out, text)
    return status_of(claims)
