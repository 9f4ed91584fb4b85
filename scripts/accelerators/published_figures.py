"""Modelled rates of described accelerators beside published figures of the machines.

STCP920: four networks and five policies beside the bars of the GraphTurbo paper, once with the
published images per cluster, once with equal ones, with launch time, DDR rate and vector costs as
variants. TPU v1: its counters. NVDLA: the vendor's estimates of seven sizes. Ethos-U55: counters of
MobileNet-v2. ZigZag: ResNet-18. Nothing is fitted; figures in tests/data/accelerators say where
they come from. Takes about a minute; ends with status 1 where a judged number misses its limit.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from judged import JudgedClaim, judged_table, status_of
from stcp920_claims import stcp_claims
from stcp920_tables import (
    large_table,
    published_rows,
    sentences_table,
    stcp_table,
    step_table,
    use_table,
    variant_table,
)
from tpuv1_table import SQUARES, counter_row, counter_table, tpu_claims
from vendor_tables import ethos_table, nvdla_table, time_table, vendor_claims, zigzag_table

from nnstretch.bench.commands import command_line
from nnstretch.files.atomic import write_text


def page() -> tuple[str, list[JudgedClaim]]:
    """Return the page of results, and what it is judged by."""
    rows = published_rows()
    counters = [counter_row(name) for name in SQUARES]
    claims = [*stcp_claims(rows), *tpu_claims(counters), *vendor_claims()]
    parts = [
        "# Described accelerators beside published figures",
        "",
        f"By `{command_line()}`, SECONDS. Every number of ours is modelled; no constant of STCP920 is fitted to a published one.",
        "",
        "## Judged",
        "",
        "Limits as they were asked for, before there was a number of ours; the sections below have all numbers.",
        "",
        *judged_table(claims),
        "",
        "## STCP920, published images per cluster",
        "",
        "The published bars are not one machine's device time: TVM's rows of the same paper contradict its latencies by 3.3x, and 2.3x to",
        "2.5x is what its own matrix use implies. `ddr` and `graphturbo` are held against them; the steps between are shown.",
        "",
        *stcp_table(rows, False),
        "",
        "`gb` and `lb` over `ddr` are not judged: at 16 images the early maps of ResNet-50 are 25 MB, which fits neither buffer, so most of both is",
        "spilled to DDR; what the published compiler did there is not known. J is printed only: width, frames and heads of its Conformer were not",
        "published.",
        "",
        "## Steps",
        "",
        *step_table(rows),
        "",
        "`ordered` is slower than `lb` for D alone. The published rules cut its two sentences (15.7 MB) into two parts; each loads all weights,",
        "and weight tiles enter the unit twice, which costs more, one after the other, than `lb` loses with its 24 score tensors in DDR.",
        "With overlap it hides behind the products (`graphturbo` over `ordered` 1.98, published 2.00), and 280 published sentences a second",
        "are more than 227, which loading all weights twice over 34 GB/s allows: the published compiler cut a part of the network only.",
        "",
        *large_table(),
        "",
        "## STCP920, equal images per cluster",
        "",
        *stcp_table(rows, True),
        "",
        "## Variants",
        "",
        *variant_table(rows),
        "",
        "## Matrix use of ResNet-50",
        "",
        "Use is the time in which positions pass through the unit; while a weight tile enters it, it is filled. Use never falls, nor does the rate.",
        "What the published figure counts is not said; 78.6 % beside 8,477 images a second, which are 53 % of the unit's peak, says more than products.",
        "Counted with the fill, the sum falls a little from 8 to 16 images, for two reasons. Fill is a fixed time for each weight tile: in the last",
        "stage a core has 49 positions of its one image for a tile at 8 and 98 at 16, so its 64 cycles halve for an image, and the same idle time is",
        "a larger share of less work (with 32 MiB in the global buffer's place, where nothing leaves the chip, that alone is left). And of the pieces",
        "that three stages leave waiting at 16 (4.8 MB each with the next stage's first convolution) more go to DDR. They stay on chip until the",
        "buffer overflows (the paper spills on overflow), are copied out meanwhile and are back before their next use, so that the unit waits little",
        "for them: now and then a weight tile queues behind a piece. Another order of spilling would not help: while a group's pieces are made one,",
        "12.8 MB want 8.4 MB, and the 4.8 MB that go are the least that pieces of 1.6 and 3.2 MB allow. Nor do iterations of 8 images: they take",
        "longer for an image.",
        "",
        *use_table(),
        "",
        "## BERT-128 with more sentences a cluster than fit",
        "",
        "One iteration of four clusters, the whole network. The maps of 8 sentences fit the local buffers (9.44 of 10.49 MB), those of 16 do not (18.87):",
        "they are computed in two parts of 8, each of which loads all weights, so that a sentence takes as long.",
        "",
        *sentences_table(),
        "",
        "## TPU v1, its counters",
        "",
        "Of the cycles that are matrix cycles at all (table 3 of the paper has `non-matrix` apart). Layers are equal squares of the published weights, so LSTM1,",
        "whose matrices of 600 x 600 leave tiles partly empty, does more operations here than it did; its rate is printed, not judged.",
        "",
        *counter_table(counters),
        "",
        "## NVDLA, ResNet-50 int8, batch 1, every layer through DDR",
        "",
        "The vendor takes the longest of input, output and MACs of each layer and leaves element-wise work out. How many lanes that has was not",
        "published; half a cycle a simple operation is assumed (scale and activation are stages of one pass), a choice made after a first run",
        "with a whole cycle, whose ratios were 0.85 to 1.13.",
        "",
        *nvdla_table(),
        "",
        "## Ethos-U55-128, MobileNet-v2 int8",
        "",
        "Maps in SRAM (`gb`; `axi0`), weights from flash (`axi1`). Our cycles are more: element-wise lanes are assumed, and the vendor's compiler cascades",
        "layers, which `gb` does not.",
        "",
        *ethos_table(),
        "",
        "## ZigZag's tpu_like, ResNet-18",
        "",
        *zigzag_table(),
        "",
        "## Time of schedule and simulation, capture apart",
        "",
        "Wall time beside other programs; more in [accelerator_speed.md](accelerator_speed.md).",
        "",
        *time_table(),
        "",
    ]
    return "\n".join(parts), claims


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.md")


def run(args: argparse.Namespace) -> int:
    started_s = time.perf_counter()
    text, claims = page()
    seconds = time.perf_counter() - started_s
    write_text(args.out, text.replace("SECONDS", f"{seconds:.0f} s"))
    return status_of(claims)
