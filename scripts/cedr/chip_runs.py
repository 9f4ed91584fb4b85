"""Experiments on the described chip: detection, instances, signal mix, mixed load, shared cores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from chip_scale import signal_mix
from describe import EVERYTHING, EXAMPLES
from published import ACCELERATED_MIX_MS, DETECTION_S, INSTANCES_S, MIX_MBPS, MIX_MS
from simulated import at_once, execution_ms, simulate, workload

from nnstretch.bench.markdown import markdown_table
from nnstretch.cli.simulate.applications import simulation_settings
from nnstretch.cli.simulate.result_json import result_json
from nnstretch.report.charts.gantt_schedule import TimeWindow, schedule_gantt
from nnstretch.report.charts.line_chart import ChartLine
from nnstretch.report.html import Markup
from nnstretch.schedule.disturbances import Disturbances, Interference
from nnstretch.schedule.simulation.simulate import Simulation
from nnstretch.trace import Span, Trace

POLICIES = ("rr", "met", "eft", "etf", "heft_rt")
EXTRAS: Mapping[str, dict[str, int]] = {
    "neither": {},
    "zip": {"zip": 1},
    "conv2d": {"conv2d": 1},
    "both": {"conv2d": 1, "zip": 1},
}
POOLS: Mapping[str, dict[str, int]] = {
    "1 cpu": {"cpu": 1},
    "2 cpu": {"cpu": 2},
    "3 cpu": {"cpu": 3},
    "3 cpu + fft": {"cpu": 3, "fft": 1},
}
FOREVER_US = 1e15
WINDOW_US = 10_000_000.0
REPEATS = 5
"""Of runs whose decisions are timed; the least counts."""
Measured = dict[str, Any]


def detection_s(pool: Mapping[str, int], policy: str, instances: int = 1) -> float:
    """Return the makespan of instances of detection that arrive at once, s."""
    file = workload([at_once("detection", "detector.json", instances)], pool, policy)
    return float(simulate(file, EXAMPLES)["makespan_ms"]) / 1000


def scale_table(measured: Measured) -> list[str]:
    """Return the three published numbers beside what the simulator makes of them."""
    mix_ms = execution_ms(simulate(workload(signal_mix(10), {"cpu": 1}, "rr"), EXAMPLES))
    measured["mix_alone_ms"] = mix_ms
    rows = (
        ("detection alone on 3 CPUs, s", DETECTION_S["eft"][0], detection_s({"cpu": 3}, "eft")),
        (
            "the same with conv2d under EFT, s",
            DETECTION_S["eft"][2],
            detection_s({"cpu": 3, "conv2d": 1}, "eft"),
        ),
        ("signal mix at 10 Mbps on one CPU under SIMPLE, ms", MIX_MS["1 cpu"]["rr"][0], mix_ms),
    )
    cells = [(what, f"{said:g}", f"{here:.3g}") for what, said, here in rows]
    return markdown_table(("sets the scale", "published", "here"), cells)


def detection_table(measured: Measured) -> list[str]:
    """Return detection under each policy on each pool."""
    rows: list[list[str]] = []
    for policy in DETECTION_S:
        row = [policy]
        for (name, extra), said in zip(EXTRAS.items(), DETECTION_S[policy], strict=True):
            here = detection_s({"cpu": 3, **extra}, policy)
            measured[f"{policy} {name}"] = here
            row.append(f"{said:.2f} / {here:.2f}")
        rows.append(row)
    heads = ("s, published / here", *(f"3 CPUs + {name}" for name in EXTRAS))
    return markdown_table(heads, rows)


def instances_table(measured: Measured) -> list[str]:
    """Return seconds per instance for 1 to 10 at once on the richest pool."""
    rows: list[list[str]] = []
    pool = {"cpu": 3, "conv2d": 1, "zip": 1}
    for policy, said in INSTANCES_S.items():
        here = [detection_s(pool, policy, count) / count for count in range(1, 11)]
        measured[f"instances {policy}"] = here
        rows.append([f"{policy}, published", *(f"{s:.2f}" for s in said)])
        rows.append([f"{policy}, here", *(f"{s:.2f}" for s in here)])
    return markdown_table(("s an instance", *map(str, range(1, 11))), rows)


def signal_table(measured: Measured) -> list[str]:
    """Return execution times of the signal mix by pool, policy and rate."""
    rows: list[list[str]] = []
    for name, pool in POOLS.items():
        for policy in POLICIES:
            results = []
            for mbps in MIX_MBPS:
                results.append(simulate(workload(signal_mix(mbps), pool, policy), EXAMPLES))
            here = [execution_ms(result) for result in results]
            measured[f"mix {name} {policy}"] = here
            measured[f"apps {name} {policy}"] = [app["execution_ms"] for app in results[-1]["apps"]]
            rows.append([name, policy, "here", *(f"{ms:.0f}" for ms in here)])
            said = MIX_MS.get(name, {}).get(policy)
            if said is not None:
                rows.append([name, policy, "published", *map(str, said)])
    return markdown_table(("pool", "policy", "ms at Mbps", *map(str, MIX_MBPS)), rows)


def decision_table(measured: Measured) -> list[str]:
    """Return what a decision takes on this host at the lowest and the highest rate."""
    rows: list[list[str]] = []
    for policy in POLICIES:
        ends: list[float] = []
        for mbps in (MIX_MBPS[0], MIX_MBPS[-1]):
            file, took_us = workload(signal_mix(mbps), POOLS["3 cpu"], policy), []
            for _ in range(REPEATS):
                took_us.append(simulate(file, EXAMPLES)["scheduling_us"]["per_task"])
            ends.append(min(took_us))
        measured[f"decision {policy}"] = ends
        rows.append([policy, *(f"{us:.1f}" for us in ends)])
    heads = ("us a task, 3 CPUs", f"at {MIX_MBPS[0]} Mbps", f"at {MIX_MBPS[-1]} Mbps")
    return markdown_table(heads, rows)


def saturation_lines(measured: Measured) -> list[ChartLine]:
    """Return execution time under EFT against the rate, a line for each pool."""
    lines: list[ChartLine] = []
    for name in POOLS:
        points = zip(map(float, MIX_MBPS), measured[f"mix {name} eft"], strict=True)
        lines.append(ChartLine(name, tuple(points)))
    said = zip(map(float, MIX_MBPS), map(float, MIX_MS["3 cpu"]["eft"]), strict=True)
    return [*lines, ChartLine("3 cpu, published", tuple(said), dashed=True)]


def instance_lines(measured: Measured) -> list[ChartLine]:
    """Return seconds per instance, a line for each policy, and what was published of EFT."""
    lines: list[ChartLine] = []
    for policy in INSTANCES_S:
        lines.append(ChartLine(policy, counted(measured[f"instances {policy}"])))
    return [*lines, ChartLine("eft, published", counted(INSTANCES_S["eft"]), dashed=True)]


def counted(values: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """Return values with their number from 1."""
    return tuple((float(number), value) for number, value in enumerate(values, 1))


def mixed_table(measured: Measured) -> list[str]:
    """Return the signal mix beside one detection: execution time of the signal applications."""
    rows: list[list[str]] = []
    for name, extra in EXTRAS.items():
        here: list[float] = []
        for mbps in MIX_MBPS:
            loads = [*signal_mix(mbps), at_once("detection", "detector.json", 1)]
            pool = {"cpu": 3, "fft": 1, **extra}
            result = simulate(workload(loads, pool, "eft"), EXAMPLES)
            signal = [app for app in result["apps"] if app["name"] != "detection"]
            here.append(execution_ms({"apps": signal}))
        measured[f"mixed {name}"] = here
        rows.append([f"3 cpu + fft + {name}", *(f"{ms:.0f}" for ms in here)])
    return markdown_table(("ms at Mbps, EFT", *map(str, MIX_MBPS)), rows)


def shared_cores_table(measured: Measured) -> list[str]:
    """Return the signal mix at 2000 Mbps where the FFT unit's thread polls on a CPU's core.

    A thread that polls has half of its core: the CPU there is half as fast, and no policy knows.
    """
    polling = Disturbances((Interference("cpu0", 0.0, FOREVER_US, 0.5),))
    rows: list[list[str]] = []
    for number, policy in enumerate(POLICIES):
        file = workload(signal_mix(MIX_MBPS[-1]), POOLS["3 cpu + fft"], policy)
        settings = simulation_settings(file, None, EXAMPLES)
        settings = replace(settings, disturbances=polling, correction=False)
        shared = execution_ms(result_json(settings, [Simulation(settings).run()]))
        alone, apart = (measured[f"mix {name} {policy}"][-1] for name in ("3 cpu", "3 cpu + fft"))
        measured[f"shared {policy}"] = (alone, apart, shared)
        said = f"{MIX_MS['3 cpu'][policy][-1]} / {ACCELERATED_MIX_MS[number]}"
        rows.append([policy, said, f"{alone:.0f}", f"{apart:.0f}", f"{shared:.0f}"])
    published = "published: 3 CPUs / with FFT and matrix units"
    here = ("3 CPUs", "with FFT, core of its own", "with FFT, shared core")
    return markdown_table(("ms at 2000 Mbps", published, *here), rows)


def gantt(measured: Measured) -> Markup:
    """Draw the first 10 s of VGG, detection and speech on everything but the FFT unit."""
    pool = {kind: count for kind, count in EVERYTHING.items() if kind != "fft"}
    spans: list[Span] = []
    loads = [at_once(name, f"{name}.json", 1) for name in ("vgg", "detector", "speech")]
    result = simulate(workload(loads, pool, "eft"), EXAMPLES, spans.append)
    measured["gantt_s"] = result["makespan_ms"] / 1000
    names = tuple(result["utilisation"])
    window = TimeWindow(0.0, WINDOW_US, "s", 1e6)
    title = "First 10 s of VGG, detection and speech under EFT, zcu102, not calibrated"
    return schedule_gantt(title, Trace(tuple(spans)), names, window)
