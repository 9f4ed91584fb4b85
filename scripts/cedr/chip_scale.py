"""The scale of the described chip, by three published times; nothing else is tuned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from network_graphs import ChipScale, network_graph
from published import DETECTION_S, MIX_BITS, MIX_MBPS, MIX_MS
from signal_apps import pulse_doppler, wifi_tx
from simulated import Load, at_once, execution_ms, simulate, workload, write_graph

from nnstretch.graph import Graph

STEPS = 30
"""Halvings of the range that a number is sought in."""
MIX_INSTANCES = 5
ALONE_S = DETECTION_S["eft"][0]
WITH_CONV2D_S = DETECTION_S["eft"][2]
MIX_ALONE_MS = MIX_MS["1 cpu"]["rr"][0]


@dataclass(frozen=True, slots=True)
class FittedScale:
    """The three numbers."""

    chip: ChipScale
    code_us: float
    """Code of a signal application beside each FFT call."""


def fitted_scale(detector: Graph, folder: Path) -> FittedScale:
    """Return the scale at which the simulator plays the three published times."""

    def detection_s(scale: ChipScale, pool: dict[str, int]) -> float:
        write_graph(folder / "fit.json", network_graph(detector, scale), "")
        file = workload([at_once("detection", "fit.json", 1)], pool, "eft")
        return float(simulate(file, folder)["makespan_ms"]) / 1000

    unit_s = detection_s(ChipScale(1.0, 1.0), {"cpu": 3})
    cpu_us = ALONE_S / unit_s
    with_conv2d = {"cpu": 3, "conv2d": 1}
    conv2d_us = bisect(
        lambda us: detection_s(ChipScale(cpu_us, us), with_conv2d), WITH_CONV2D_S, cpu_us * 8
    )
    code_us = bisect(lambda us: signal_mix_ms(us, folder), MIX_ALONE_MS, 1000.0)
    return FittedScale(ChipScale(cpu_us, conv2d_us), code_us)


def signal_mix_ms(code_us: float, folder: Path) -> float:
    """Return the execution time at 10 Mbps on one CPU, ms."""
    write_graph(folder / "pulse_doppler.json", pulse_doppler(code_us), "")
    write_graph(folder / "wifi_tx.json", wifi_tx(code_us), "")
    loads = signal_mix(MIX_MBPS[0])
    return execution_ms(simulate(workload(loads, {"cpu": 1}, "rr"), folder))


def signal_mix(mbps: float, instances: int = MIX_INSTANCES) -> list[Load]:
    """Return the signal mix at a rate; the first instance waits a period, as in CEDR."""
    arrivals = {"period_ms": MIX_BITS / mbps / 1000, "first": "period"}
    return [
        Load(name, f"{name}.json", arrivals, instances) for name in ("wifi_tx", "pulse_doppler")
    ]


def bisect(value: Callable[[float], float], wanted: float, high: float) -> float:
    """Return where a rising function comes closest to a value between 0 and `high`; it may jump."""
    low = 0.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        if value(middle) < wanted:
            low = middle
        else:
            high = middle
    return min(low, high, key=lambda at: abs(value(at) - wanted))
