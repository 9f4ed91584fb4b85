"""Cycles of independent programs beside ours, their descriptions translated from ours.

--envs FOLDER holds one environment for each: `scalesim` (scalesim 3.0.0, numpy below 2), `zigzag`
(zigzag-dse 3.9.1, and six, which it does not declare), `vela` (ethos-u-vela 5.2.0) and `stream`
(stream-dse 2.1.1, and six, Python 3.12).
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optimum_gaps import SmallGraph
from outside_programs import scalesim_cycles, vela_summary, zigzag_cycles
from stream_program import ConvolutionPair, stream_cycles

from nnstretch.accelerate.chip_graph import ChipGraph, chip_graph
from nnstretch.accelerate.machine.load_accelerator import load_accelerator
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.operator_work import MatrixShape
from nnstretch.accelerate.policies import ScheduleOptions, schedule_cluster
from nnstretch.bench.commands import command_line, run_verb
from nnstretch.bench.markdown import markdown_table
from nnstretch.chip.accelerator import Accelerator, Dram, MatrixUnit, OnChipBuffer, VectorUnit
from nnstretch.files.atomic import write_text
from nnstretch.graph import Graph, TensorSpec, Value

ARRAY = 32
SIZES = (17, 48, 64, 100, 128, 200)
"""Of the products that are compared: partly multiples of the array, partly not."""
PRODUCTS = (
    (64, 64, 64),
    (100, 64, 48),
    *((SIZES[i % 6], SIZES[(i * 5 + 1) % 6], SIZES[(i * 7 + i // 6) % 6]) for i in range(18)),
)
ZIGZAG_MACHINE = "zigzag-tpu-like"
PAIRS = (
    ConvolutionPair(8, 32, 64, 64),
    ConvolutionPair(32, 64, 64, 64),
    ConvolutionPair(28, 128, 128, 128),
    ConvolutionPair(14, 256, 256, 256),
)
QUAD = Accelerator(
    "quad",
    clusters=1,
    cores=4,
    clock_hz=1e9,
    element_types=("int8",),
    matrix=MatrixUnit(32, 32, 0),
    vector=VectorUnit(32),
    local=OnChipBuffer(2 << 20, 256e9),
    ddr=Dram(8e9, False),
    mesh_bytes_per_s=4e9,
)
"""Four cores of the sizes and rates of Stream's tpu_like_quad_core."""
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


def pair_graph(pair: ConvolutionPair) -> ChipGraph:
    """Return two convolutions of one image."""
    maker = SmallGraph(random.Random(0))
    maker.shapes = {"x": (1, pair.channels, pair.side, pair.side)}
    between = maker.convolution("x", pair.middle, 3, 1)
    last = maker.convolution(between, pair.last, 3, 1)
    inputs = (Value("x", TensorSpec(maker.shapes["x"])),)
    graph = Graph("pair", inputs, tuple(maker.weights), tuple(maker.nodes), (last,))
    return chip_graph(graph, "int8")


def stream_table(envs: Path) -> list[str]:
    """Return cycles of two convolutions on four cores."""
    rates = ChipRates(QUAD, "int8")
    rows: list[Sequence[object]] = []
    for pair, theirs in zip(PAIRS, stream_cycles(envs, QUAD, PAIRS), strict=True):
        chip = pair_graph(pair)
        cells: list[object] = [str(pair), f"{theirs:,}"]
        for policy in ("ddr", "graphturbo"):
            options = ScheduleOptions(policy, overlap="layers")
            ours = schedule_cluster(chip, rates, options).latency_us * 1000
            cells += [f"{ours:,.0f}", f"{ours / theirs:.2f}"]
        rows.append(cells)
    heads = "map, channels|stream|`ddr`|/ stream|`graphturbo`|/ stream"
    return markdown_table(heads.split("|"), rows)


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


def stream_section(envs: Path) -> list[str]:
    """Pairs of convolutions on four cores."""
    return [
        "## stream-dse 2.1.1: two 3 x 3 convolutions, int8, on four cores of 32 x 32",
        "",
        "Cycles of the mapping that Stream proposes and solves (OR-Tools), the pair as one fused group. `graphturbo` keeps the map",
        "between the two on chip as well, `ddr` moves it out and in.",
        "",
        *stream_table(envs),
        "",
    ]


SECTIONS = {
    "scalesim": scalesim_section,
    "zigzag": zigzag_section,
    "vela": vela_section,
    "stream": stream_section,
}


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
