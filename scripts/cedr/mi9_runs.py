"""Experiments with the same networks on mi9, a layer a task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from signal_apps import GraphTable
from simulated import Load, at_once, execution_ms, simulate, workload, write_graph

from nnstretch.bench.markdown import markdown_table
from nnstretch.cli.loaded_model import load_soc_of
from nnstretch.cli.simulate.network_tasks import network_tasks
from nnstretch.cli.simulate.pool import Pool
from nnstretch.graph import Graph
from nnstretch.report.charts.gantt_schedule import TimeWindow, schedule_gantt
from nnstretch.report.charts.line_chart import ChartLine
from nnstretch.report.html import Markup
from nnstretch.trace import Span, Trace

CHIP = "mi9"
POOLS: Mapping[str, dict[str, int]] = {
    "cpu": {"cpu": 1},
    "cpu + gpu": {"cpu": 1, "gpu": 1},
    "cpu + dsp": {"cpu": 1, "dsp": 1},
    "cpu + gpu + dsp": {"cpu": 1, "gpu": 1, "dsp": 1},
}
POLICIES = ("rr", "met", "eft", "etf", "heft_rt")
RATES = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
"""Mixes a second: one instance of each network."""
NETWORKS = ("detector", "vgg", "speech")
INSTANCES = 20


def write_mi9_graphs(folder: Path, graphs: Mapping[str, Graph]) -> None:
    """Write a task graph of each network with predicted times on mi9."""
    soc = load_soc_of(CHIP)
    pool = Pool(soc.processors, soc)
    for name, graph in graphs.items():
        tasks, times_us, transfers_us = network_tasks(graph, "layers", pool, soc)
        table = GraphTable()
        for task in tasks:
            costs: dict[str, float] = {}
            for processor in soc.processors:
                if (task.work, processor.name) in times_us:
                    costs[processor.name] = times_us[task.work, processor.name]
            table.add(task.name, sorted(task.needs), costs)
        file, types = folder / f"{name}.json", tuple(POOLS["cpu + gpu + dsp"])
        write_graph(file, table, soc.provenance, types, transfers_us)


def mi9_pools(folder: Path) -> list[str]:
    """Return the latency of one instance of each network by pool and policy."""
    rows: list[list[str]] = []
    for name, pool in POOLS.items():
        for policy in POLICIES:
            row = [name, policy]
            for network in NETWORKS:
                file = workload([at_once(network, f"{network}.json", 1)], pool, policy)
                row.append(f"{simulate(file, folder)['makespan_ms']:.1f}")
            rows.append(row)
    return markdown_table(("ms, one instance alone", "policy", *NETWORKS), rows)


def mi9_instances(folder: Path) -> list[str]:
    """Return ms per instance of detection for 1 to 10 at once."""
    rows: list[list[str]] = []
    for policy in POLICIES:
        row = [policy]
        for count in range(1, 11):
            file = workload(
                [at_once("detector", "detector.json", count)], POOLS["cpu + gpu + dsp"], policy
            )
            row.append(f"{simulate(file, folder)['makespan_ms'] / count:.1f}")
        rows.append(row)
    return markdown_table(("ms an instance, detection", *map(str, range(1, 11))), rows)


def mi9_saturation(folder: Path) -> tuple[list[str], list[ChartLine]]:
    """Return execution time of the three networks by pool, policy and rate, and EFT's lines."""
    rows: list[list[str]] = []
    lines: list[ChartLine] = []
    for name, pool in POOLS.items():
        for policy in POLICIES:
            here: list[float] = []
            for rate in RATES:
                arrivals = {"period_ms": 1000 / rate}
                loads = [Load(n, f"{n}.json", arrivals, INSTANCES) for n in NETWORKS]
                here.append(execution_ms(simulate(workload(loads, pool, policy), folder)))
            rows.append([name, policy, *(f"{ms:.0f}" for ms in here)])
            if policy == "eft":
                lines.append(ChartLine(name, tuple(zip(RATES, here, strict=True))))
    heads = ("execution, ms, at mixes a second", "policy", *(f"{rate:g}" for rate in RATES))
    return markdown_table(heads, rows), lines


def mi9_gantt(folder: Path) -> Markup:
    """Draw one instance of VGG, detection and speech each under EFT."""
    spans: list[Span] = []
    loads = [at_once(name, f"{name}.json", 1) for name in ("vgg", "detector", "speech")]
    result = simulate(workload(loads, POOLS["cpu + gpu + dsp"], "eft"), folder, spans.append)
    title = "VGG, detection and speech under EFT, mi9"
    return schedule_gantt(title, Trace(tuple(spans)), tuple(result["utilisation"]), TimeWindow())
