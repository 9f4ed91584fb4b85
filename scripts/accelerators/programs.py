"""Cycles of independent programs beside ours, their descriptions translated from ours.

--envs FOLDER holds one environment for each: `scalesim` (scalesim 3.0.0, numpy below 2), `zigzag`
(zigzag-dse 3.9.1, and six, which it does not declare) and `vela` (ethos-u-vela 5.2.0).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outside_programs import scalesim_cycles, vela_summary, zigzag_cycles

from nnstretch.accelerate.machine.load_accelerator import load_accelerator
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.operator_work import MatrixShape
from nnstretch.bench.commands import command_line, run_verb
from nnstretch.bench.markdown import markdown_table
from nnstretch.chip.accelerator import Accelerator, Dram, MatrixUnit, OnChipBuffer, VectorUnit
from nnstretch.files.atomic import write_text

ARRAY = 32
SIZES = (17, 48, 64, 100, 128, 200)
"""Of the products that are compared: partly multiples of the array, partly not."""
PRODUCTS = (
    (64, 64, 64),
    (100, 64, 48),
    *((SIZES[i % 6], SIZES[(i * 5 + 1) % 6], SIZES[(i * 7 + i // 6) % 6]) for i in range(18)),
)
ZIGZAG_MACHINE = "zigzag-tpu-like"
IMAGES = 4
"""Random ones, on which int8 ranges are measured: cycles do not depend on them."""


def systolic(rows: int) -> ChipRates:
    """A systolic array that waits for its edges: fill = 2 rows + columns - 2."""
    unit = MatrixUnit(rows, rows, fill_cycles=3 * rows - 2)
    buffer, ddr = OnChipBuffer(1, 1.0), Dram(1.0)
    machine = Accelerator("systolic", 1, 1, 1e9, ("int8",), unit, VectorUnit(1), buffer, ddr)
    return ChipRates(machine, "int8")


def scalesim_table(envs: Path) -> tuple[list[str], str]:
    """The table of products, and one sentence on the differences."""
    rates = systolic(ARRAY)
    rows: list[Sequence[object]] = []
    differences: list[int] = []
    theirs = scalesim_cycles(envs, ARRAY, ARRAY, PRODUCTS)
    for (m, n, k), cycles in zip(PRODUCTS, theirs, strict=True):
        ours = round(rates.matrix_us(MatrixShape(1, m, k, n)) * 1000)
        differences.append(ours - cycles)
        rows.append([f"{m} x {n} x {k}", cycles, ours, ours - cycles])
    table = markdown_table(("M x N x K", "scalesim", "ours", "difference"), rows)
    spread = f"{min(differences)} to {max(differences)} cycles more"
    return table, f"{len(PRODUCTS)} products, ours {spread}: scalesim counts from cycle 0."


def zigzag_table(envs: Path) -> list[str]:
    """ResNet-18 through DDR, layer by layer."""
    theirs = zigzag_cycles(envs, load_accelerator(ZIGZAG_MACHINE))
    rows: list[Sequence[object]] = []
    for label, assume in (("as described", ()), ("without vector work", ("vector.lanes=1000000",))):
        answer = accelerated("torchvision:resnet18", ZIGZAG_MACHINE, "ddr", assume)
        ours = answer["latency_ms"] * 1e6
        rows.append([label, f"{theirs:,.0f}", f"{ours:,.0f}", f"{ours / theirs:.2f}"])
    return markdown_table(("ours", "zigzag", "ours, cycles", "ours / zigzag"), rows)


def accelerated(model: str, machine: str, policy: str, assume: Sequence[str]) -> dict[str, Any]:
    """Return what the command says of one input on a machine."""
    settings = [word for setting in assume for word in ("--assume", setting)]
    command = ["accelerate", model, "--accelerator", machine, "--policy", policy]
    return run_verb(*command, "--overlap", "layers", *settings)


def int8_network(folder: Path) -> Path:
    """Export MobileNet-v2 as an int8 .tflite."""
    import numpy as np
    from PIL import Image

    photos = folder / "photos"
    photos.mkdir()
    draw = np.random.default_rng(0)
    for number in range(IMAGES):
        pixels = draw.integers(0, 256, (224, 224, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(photos / f"{number}.png")
    target = folder / "mobilenet_v2.tflite"
    calibration = ["--int8", "--calibration", photos, "--calibration-images", IMAGES]
    command = ["export", "torchvision:mobilenet_v2", "--format", "litert", "--single", target]
    run_verb(*command, *calibration, "--min-snr", "-100")
    return target


def vela_table(envs: Path) -> list[str]:
    """MobileNet-v2 on an Ethos-U55 of 128 multipliers."""
    with tempfile.TemporaryDirectory() as name:
        summary = vela_summary(envs, int8_network(Path(name)))
    theirs = float(summary["cycles_total"])
    rows: list[Sequence[object]] = [["Vela", f"{theirs:,.0f}", ""]]
    cases: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("as described", ()),
        ("without vector work", ("vector.lanes=1000000",)),
        ("without waiting for the flash", ("ddr.bandwidth=1000",)),
        ("depthwise at 64 MACs a cycle", ("matrix.depthwise=64",)),
        ("all three", ("vector.lanes=1000000", "ddr.bandwidth=1000", "matrix.depthwise=64")),
    )
    for label, assume in cases:
        answer = accelerated("torchvision:mobilenet_v2", "ethos-u55-128", "gb", assume)
        ours = answer["latency_ms"] * 1000 * 500
        rows.append([f"ours, {label}", f"{ours:,.0f}", f"{ours / theirs:.2f}"])
    return markdown_table(("program", "cycles", "ours / Vela"), rows)


def scalesim_section(envs: Path) -> list[str]:
    """Products on a systolic array."""
    products, sentence = scalesim_table(envs)
    title = f"## scalesim 3.0.0: products on {ARRAY} x {ARRAY}, weights stationary"
    return [title, "", sentence, "", *products, ""]


def zigzag_section(envs: Path) -> list[str]:
    """ResNet-18 through DDR."""
    return [
        "## zigzag-dse 3.9.1: ResNet-18 on the translated `zigzag-tpu-like`",
        "",
        "ZigZag searches the fastest loop order of each layer; ours counts vector work (activation, sums), too.",
        "",
        *zigzag_table(envs),
        "",
    ]


def vela_section(envs: Path) -> list[str]:
    """MobileNet-v2 in int8."""
    return [
        "## ethos-u-vela 5.2.0: MobileNet-v2, int8 as exported, on `ethos-u55-128`",
        "",
        "Vela's total cycles, ours under `gb`, and what each of our assumptions is worth. Most of the difference is vector work: ours passes",
        "every element of scale and activation over two assumed lanes; in the machine they are stages on the way of a product to memory.",
        "",
        *vela_table(envs),
        "",
    ]


SECTIONS = {"scalesim": scalesim_section, "zigzag": zigzag_section, "vela": vela_section}


def page(envs: Path, programs: Sequence[str]) -> str:
    """The tables as a page."""
    lines = [
        "# Independent programs beside ours",
        "",
        f"`{command_line()}`",
        "",
        "Each runs in an environment of its own; descriptions are translated by the script. Modelled on both sides.",
        "",
    ]
    for name in programs:
        lines += SECTIONS[name](envs)
    return "\n".join(lines)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--envs", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.md")
    parser.add_argument("--programs", nargs="+", choices=SECTIONS, default=tuple(SECTIONS))


def run(args: argparse.Namespace) -> int:
    write_text(args.out, page(args.envs, args.programs))
    return 0
