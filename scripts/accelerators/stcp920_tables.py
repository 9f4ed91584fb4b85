"""STCP920 beside the bars of the GraphTurbo paper."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from modelled_cases import FIGURES, MODELS, SHOWN, modelled

from nnstretch.accelerate.accelerate import AccelerateResult, result_json
from nnstretch.accelerate.engines.simulate import end_times_us
from nnstretch.accelerate.machine.rates import MATRIX
from nnstretch.accelerate.policies import ClusterSchedule
from nnstretch.bench.markdown import markdown_table
from nnstretch.chip.instances import DDR, Region

POLICIES = ("ddr", "gb", "lb", "ordered", "graphturbo")
BARS = ("", "abl1_stay_in_llb", "abl2_stay_in_l1", "abl3_split_order", "abl4_instr_sched")
VARIANTS = {
    "as described": (),
    "launch 20 us": ("kernel_launch=20",),
    "launch 50 us": ("kernel_launch=50",),
    "DDR 27 GB/s": ("ddr.bandwidth=27",),
    "vector costs x0.5": ("vector.simple=0.5", "vector.special=2"),
    "vector costs x2": ("vector.simple=2", "vector.special=8"),
}
MEASURED_USE = {1: 19.1, 2: 28.6, 4: 51.8, 8: 77.7, 16: 78.6}
BERT_128 = {8: 4052.0, 16: 2716.0}
"""Published sentences a second by sentences a cluster (table 1, one iteration)."""


@dataclass(frozen=True)
class Published:
    """One row of the paper's evaluation."""

    label: str
    batch: int
    images: dict[str, int]
    """Images per cluster by policy."""
    rate: dict[str, float]


def published_rows() -> list[Published]:
    """Read the paper's rows."""
    rows: list[Published] = []
    with (FIGURES / "graphturbo.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            tvm, ours = int(row["n_per_cluster_tvm"]), int(row["n_per_cluster_graphturbo"])
            images = {policy: tvm if policy == "ddr" else ours for policy in POLICIES}
            base = float(row["tvm_abs"])
            rate = {
                p: base * float(row[bar] or 1) if bar else base
                for p, bar in zip(POLICIES, BARS, strict=True)
            }
            rows.append(Published(row["label"], int(row["batch"]), images, rate))
    return rows


def stcp_table(rows: Sequence[Published], equal: bool) -> list[str]:
    """Return modelled and published rates of five policies."""
    heads = [
        "network",
        "policy",
        "a cluster",
        "modelled /s",
        "published /s",
        "modelled / published",
        "over ddr",
        "published",
    ]
    lines: list[list[object]] = []
    for row in rows:
        base = None
        for policy in POLICIES:
            images = row.images["graphturbo"] if equal else row.images[policy]
            result = modelled(MODELS[row.label], "stcp920", policy, row.batch, images)
            rate = result.throughput_per_s
            base = base or rate
            lines.append(
                [
                    f"{row.label} {SHOWN[row.label]}",
                    policy,
                    images,
                    f"{rate:,.0f}",
                    f"{row.rate[policy]:,.0f}",
                    f"{rate / row.rate[policy]:.2f}",
                    f"{rate / base:.2f}",
                    f"{row.rate[policy] / row.rate['ddr']:.2f}",
                ]
            )
    return markdown_table(heads, lines)


def step_table(rows: Sequence[Published]) -> list[str]:
    """Return the ratios of neighbouring policies, modelled and published."""
    steps = (
        ("gb", "ddr"),
        ("lb", "gb"),
        ("ordered", "lb"),
        ("graphturbo", "ordered"),
        ("graphturbo", "ddr"),
    )
    lines: list[list[object]] = []
    for after, before in steps:
        ours, theirs = [], []
        for row in rows:
            rates = [
                modelled(MODELS[row.label], "stcp920", p, row.batch, row.images[p]).throughput_per_s
                for p in (after, before)
            ]
            ours.append(rates[0] / rates[1])
            theirs.append(row.rate[after] / row.rate[before])
        lines.append(
            [
                f"{after} / {before}",
                *(f"{a:.2f} ({b:.2f})" for a, b in zip(ours, theirs, strict=True)),
                *means(ours),
                *means(theirs),
            ]
        )
    heads = [
        "step",
        *(f"{row.label} (published)" for row in rows),
        "mean",
        "geomean",
        "median",
        "published mean",
        "geomean",
        "median",
    ]
    return markdown_table(heads, lines)


def bert_per_s(sentences: int) -> float:
    """Return BERT-128's sentences a second, so many a cluster, one iteration."""
    result = modelled(MODELS["B"], "stcp920", "graphturbo", 4 * sentences, sentences)
    return result.throughput_per_s


def sentences_table() -> list[str]:
    """Return BERT-128 with as many sentences a cluster as fit, and with twice as many."""
    lines: list[list[object]] = []
    for sentences, published in BERT_128.items():
        result = modelled(MODELS["B"], "stcp920", "graphturbo", 4 * sentences, sentences)
        spilled = sum(spill.size_bytes for spill in result.schedule.placed.spills) / 1e6
        rate = bert_per_s(sentences)
        each_us = f"{result.schedule.latency_us / sentences:.1f}"
        instances = len(result.schedule.order)
        cells = f"{rate:,.0f}", f"{published:,.0f}", f"{rate / published:.2f}", f"{spilled:.1f}"
        lines.append([sentences, instances, each_us, *cells])
    heads = "a cluster|instances|us a sentence|modelled /s|published /s|ratio|MB spilled"
    return markdown_table(heads.split("|"), lines)


def large_table() -> list[str]:
    """Return what BERT-large moves and waits for, layer by layer and in parts."""
    lines: list[list[object]] = []
    for policy in ("lb", "ordered", "graphturbo"):
        result = modelled(MODELS["D"], "stcp920", policy, 8, 2)
        answer = result_json(result, "D")
        clusters = 4 * result.iterations
        weights = answer["weights_ddr_bytes"] / clusters / 1e6
        maps = answer["ddr_bytes"] / clusters / 1e6 - weights
        fill_ms = answer["utilisation"]["matrix_fill"] * result.latency_us / 1000
        cells = f"{weights:,.0f}", f"{maps:,.0f}", f"{fill_ms:.1f}"
        lines.append(
            [policy, len(result.schedule.order), *cells, f"{result.latency_us / 1000:.1f}"]
        )
    heads = "policy|instances|MB weights over DDR|MB maps over DDR|ms filling the unit|ms"
    return markdown_table(heads.split("|"), lines)


def means(values: Sequence[float]) -> list[str]:
    """Return arithmetic mean, geometric mean and median."""
    return [
        f"{f(values):.2f}" for f in (statistics.fmean, statistics.geometric_mean, statistics.median)
    ]


def variant_table(rows: Sequence[Published]) -> list[str]:
    """Return ddr and graphturbo under other values of what was not published."""
    lines: list[list[object]] = []
    for name, assume in VARIANTS.items():
        cells: list[object] = [name]
        for row in rows:
            for policy in ("ddr", "graphturbo"):
                result = modelled(
                    MODELS[row.label], "stcp920", policy, row.batch, row.images[policy], assume
                )
                cells.append(f"{result.throughput_per_s:,.0f}")
        lines.append(cells)
    heads = [
        "variant",
        *(f"{row.label} {policy}" for row in rows for policy in ("ddr", "graphturbo")),
    ]
    return markdown_table(heads, lines)


def use_table() -> list[str]:
    """Return matrix use of ResNet-50 by images per cluster."""
    lines: list[list[object]] = []
    apart: list[float] = []
    together: list[float] = []
    larger = ("global_buffer.size=32MiB",)
    for images, measured in MEASURED_USE.items():
        result = modelled(MODELS["A"], "stcp920", "graphturbo", 4 * images, images)
        use, fill = use_and_fill(result)
        apart.append(abs(use - measured))
        together.append(abs(use + fill - measured))
        spills = [spill for spill in result.schedule.placed.spills if spill.target == DDR]
        spilled = sum(spill.size_bytes for spill in spills) / images / 1e6
        waited = 100 * spill_waits_us(result.schedule) / result.schedule.latency_us
        roomy = sum(
            use_and_fill(modelled(MODELS["A"], "stcp920", "graphturbo", 4 * images, images, larger))
        )
        without = (use + fill) / (1 - waited / 100)
        cells = [
            f"{use:.1f}",
            measured,
            f"{use - measured:+.1f}",
            f"{fill:.1f}",
            f"{use + fill:.1f}",
        ]
        cells += [f"{spilled:.2f}", f"{waited:.1f}", f"{without:.1f}", f"{roomy:.1f}"]
        lines.append([images, *cells])
    mean, other = statistics.fmean(apart), statistics.fmean(together)
    lines.append(["mean difference", "", "", f"{mean:.1f}", "", f"{other:.1f}", "", "", "", ""])
    heads = (
        "a cluster|modelled %|published %|difference|fill %|use and fill %"
        "|MB spilled to DDR an image|waits for spilled %|use and fill % without them"
        "|use and fill % with a global buffer of 32 MiB"
    )
    return markdown_table(heads.split("|"), lines)


def use_and_fill(result: AccelerateResult) -> tuple[float, float]:
    """Return the per cent of time in which positions pass and in which weight tiles enter."""
    shares = result_json(result, "A")["utilisation"]
    return 100 * shares["matrix"], 100 * shares["matrix_fill"]


def spill_waits_us(schedule: ClusterSchedule) -> float:
    """Return how long the matrix unit waits for transfers of what was spilled to DDR."""
    ends = end_times_us(schedule.instructions, schedule.needs)
    storages = schedule.placed.program.storages.values()
    places = [schedule.placed.region(s.name) for s in storages if s.scope == DDR and not s.fixed]
    waited = free_us = 0.0
    for number, instruction in enumerate(schedule.instructions):
        if instruction.engine != MATRIX:
            continue
        cause = number
        # Of each wait, the chain of what it waited for.
        while (needs := schedule.needs[cause]) and ends[cause] > free_us:
            cause = max(needs, key=lambda need: ends[need])
            item = schedule.instructions[cause]
            if any(lies_in(r, place) for r in (*item.reads, *item.writes) for place in places):
                start_us = max(free_us, ends[cause] - item.duration_us)
                waited += max(0.0, ends[cause] - start_us)
        free_us = ends[number]
    return waited


def lies_in(region: Region, place: Region) -> bool:
    """Return whether a region is a part of another."""
    return region.buffer == place.buffer and place.start <= region.start < place.stop
