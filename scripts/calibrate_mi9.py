"""Fit the mi9 predictors on the published measurements and write latency_predictors/mi9.

    python scripts/calibrate_mi9.py [--data tests/data/nn_stretch] [--out latency_predictors/mi9]

Three sources: 24 whole-network latencies, 26 single GPU kernels, and the waits around a meeting point.
Crossing to the GPU and merging are read off the waits directly; everything else is one
least-squares fit of log ratios, bounded and lightly pulled towards its start so that the few
networks decide only what they can decide. Deterministic: fixed start, no random numbers.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from calibration_card import card
from scipy.optimize import least_squares  # type: ignore[import-untyped]

from nnstretch.files import write_text
from nnstretch.predict.analytic import Analytic, Features, Rates, describe, latency_us
from nnstretch.predict.ops import Branch, Part, costs, read_ops
from nnstretch.protocols import Kernel
from nnstretch.soc import Link, Processor, Soc

ROOT = Path(__file__).parents[1]
ELEMENT_BYTES = 1
KERNEL_WEIGHT = 0.2
"""26 kernels of one network must not outvote 24 networks."""
PULL = 0.06
"""Weight of the pull towards the start, per factor of e."""
DOUBTED = {"EN-L4-CD": 0.3}
"""Weight of rows whose measured graph may differ from the listed one."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One fitted number: where the fit starts, and what physics allows."""

    name: str
    start: float
    low: float
    high: float
    spread: float = 1.0
    """Factors of e by which the start may well be wrong."""


PARAMETERS = (
    Parameter("cpu.launch_us", 5, 1, 100),
    Parameter("cpu.dense_macs_per_us", 250e3, 60e3, 323e3, 0.5),  # 32 MACs a cycle on cores of 2.84 and 3 x 2.42 GHz: 323e3 is the peak
    Parameter("cpu.depthwise_macs_per_us", 20e3, 3e3, 200e3),
    Parameter("cpu.half_channels", 4, 0.1, 100),
    Parameter("cpu.bytes_per_us", 5000, 100, 20e3),
    Parameter("cpu.group_us", 20, 0.5, 200),
    Parameter("cpu.patch_us_per_kib", 0.1, 1e-3, 10),  # one thread copies some 10 GB/s
    Parameter("cpu.elementwise_us_per_kib", 1, 0.01, 3),  # one thread requantises some 1 element a nanosecond
    Parameter("gpu.launch_us", 15, 1, 80, 0.7),
    Parameter("gpu.dense_macs_per_us", 142e3, 40e3, 400e3, 0.5),
    Parameter("gpu.depthwise_macs_per_us", 20e3, 3e3, 200e3),
    Parameter("gpu.fill_outputs", 20e3, 100, 200e3),
    Parameter("gpu.bytes_per_us", 10e3, 200, 30e3),
    Parameter("gpu.group_us", 30, 0.5, 300),
    Parameter("dsp.launch_us", 10, 1, 100),
    Parameter("dsp.dense_macs_per_us", 300e3, 60e3, 1500e3, 0.5),
    Parameter("dsp.depthwise_macs_per_us", 20e3, 3e3, 200e3),
    Parameter("dsp.half_channels", 8, 0.1, 100),
    Parameter("dsp.bytes_per_us", 5000, 200, 30e3),
    Parameter("dsp.group_us", 30, 0.5, 300),
    Parameter("gpu.sync_us", 500, 50, 2000, 0.5),
    Parameter("dsp.fixed_us", 150, 10, 1000),
    Parameter("dsp.us_per_kib", 0.5, 0.05, 5),
    Parameter("cpu+gpu", 1.1, 1, 2, 0.3),
    Parameter("cpu+dsp", 1.1, 1, 2, 0.3),
)
NAMES = tuple(p.name for p in PARAMETERS)
START, LOW, HIGH, SPREAD = (np.array([getattr(p, key) for p in PARAMETERS], float) for key in ("start", "low", "high", "spread"))
RATES = tuple(Rates.__dataclass_fields__)
PROCESSORS = ("cpu", "gpu", "dsp")
QUEUE_DEPTH = {"cpu": 1, "gpu": 4, "dsp": 1}


@dataclass(frozen=True, slots=True)
class Crossing:
    """Read off the waits of R-34-DG, not fitted."""

    gpu_in: Link
    gpu_out: Link
    merge: Link


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything measured, and the kernels behind it as arrays."""

    networks: Mapping[str, tuple[Part, ...]]
    measured_us: Mapping[str, float]
    model: Mapping[str, str]
    kernel_us: np.ndarray
    stage: np.ndarray
    crossing: Crossing
    features: Mapping[str, Features]
    spans: Mapping[int, tuple[str, int, int]]
    """Where the kernels of a branch lie in the arrays of its processor."""
    gpu_kernels: Features


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def line(x: Sequence[float], y: Sequence[float]) -> Link:
    """Straight line through waits over KiB, both ends at least zero."""
    slope, fixed = np.polyfit(x, y, 1)
    return Link(rounded(max(0.0, float(fixed))), rounded(max(0.0, float(slope))))


def crossing(timed: list[dict[str, str]]) -> Crossing:
    """Launch gap over KiB in, output gap over KiB out, time beyond the wait over KiB merged, by stage and run."""
    stages = [row for row in timed if row["kernel_index"] == "1"]
    last = {(r["run"], r["stage"]): int(r["cout"]) * int(r["hw_out"]) ** 2 / 1024 for r in timed if r["role"] == "conv2"}
    merged = {"1": 96 * 56**2, "2": 144 * 28**2, "3": 304 * 14**2, "4": 576 * 7**2}
    return Crossing(
        line([int(r["cin"]) * int(r["hw_in"]) ** 2 / 1024 for r in stages], [float(r["launch_gap_us"]) for r in stages]),
        line([last[r["run"], r["stage"]] for r in stages], [float(r["out_gap_us"]) for r in stages]),
        line([merged[r["stage"]] / 1024 for r in stages], [float(r["concat_minus_wait_us"]) for r in stages]),
    )


def kernel_of(row: dict[str, str]) -> Kernel:
    """The second convolution of a block carries the residual sum along."""
    cin, cout, hw_in, hw_out, k = (int(row[key]) for key in ("cin", "cout", "hw_in", "hw_out", "k"))
    read, write = cin * hw_in**2, cout * hw_out**2
    residual = write if row["role"] == "conv2" else 0
    return Kernel(
        name=row["role"], kind="conv", cin=cin, cout=cout, hw_in=hw_in**2, hw_out=hw_out**2, kernel=k, stride=int(row["s"]), groups=1,
        batch=1, macs=int(row["macs"]), read_elements=read + residual, write_elements=write, weight_elements=k * k * cin * cout + cout,
    )  # fmt: skip


def stacked(kernels: Sequence[Kernel]) -> Features:
    columns = zip(*(describe(kernel, ELEMENT_BYTES) for kernel in kernels), strict=True)
    return Features(*(np.array(column, float) for column in columns))  # type: ignore[arg-type]


def gather(data: Path) -> Evidence:
    latencies = rows(data / "latency_mi9.csv")
    bare = Soc("mi9", tuple(Processor(name, name, 1) for name in PROCESSORS), "int8", {})
    networks = read_ops(data / "ops_mi9.csv", bare)
    kernels: dict[str, list[Kernel]] = {name: [] for name in PROCESSORS}
    spans: dict[int, tuple[str, int, int]] = {}
    for branch in (b for parts in networks.values() for part in parts for b in part.branches):
        first = len(kernels[branch.processor])
        kernels[branch.processor] += branch.kernels
        spans[id(branch)] = (branch.processor, first, first + len(branch.kernels))
    timed = [row for row in rows(data / "kernels_r34dg.csv") if row["run"] != "warmup"]
    single: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in timed:
        single.setdefault((row["stage"], row["kernel_index"]), []).append(row)
    return Evidence(
        networks=networks,
        measured_us={row["config"]: float(row["latency_us"]) for row in latencies},
        model={row["config"]: row["model"] for row in latencies},
        kernel_us=np.array([np.mean([float(run["kernel_us"]) for run in runs]) for runs in single.values()]),
        stage=np.array([int(stage) for stage, _ in single]),
        crossing=crossing(timed),
        features={name: stacked(many) for name, many in kernels.items()},
        spans=spans,
        gpu_kernels=stacked([kernel_of(runs[0]) for runs in single.values()]),
    )


def rates_of(values: Mapping[str, float], processor: str) -> Rates:
    """What was not fitted for a processor costs nothing there."""
    return Rates(**{name: values.get(f"{processor}.{name}", 0.0) for name in RATES})


def soc_of(values: Mapping[str, float], across: Crossing, errors: Mapping[str, float], provenance: str = "") -> Soc:
    dsp = Link(values["dsp.fixed_us"], values["dsp.us_per_kib"])
    return Soc(
        name="mi9",
        processors=(
            Processor("cpu", "cpu", QUEUE_DEPTH["cpu"], asynchronous=False),
            Processor("gpu", "gpu", QUEUE_DEPTH["gpu"], across.gpu_in, across.gpu_out, values["gpu.sync_us"]),
            Processor("dsp", "dsp", QUEUE_DEPTH["dsp"], dsp, Link(0.0, dsp.us_per_kib), asynchronous=False),
        ),
        dtype="int8",
        predictors={name: Analytic(name, "int8", rates_of(values, name), errors.get(name, 0.0)) for name in PROCESSORS},
        merge=across.merge,
        contention={frozenset(("cpu", "gpu")): values["cpu+gpu"], frozenset(("cpu", "dsp")): values["cpu+dsp"]},
        provenance=provenance,
    )


def predict(values: Mapping[str, float], evidence: Evidence, configs: Sequence[str]) -> dict[str, float]:
    """Whole networks through the very formula that prices plans."""
    soc = soc_of(values, evidence.crossing, {})
    sums = {name: np.cumsum([0.0, *latency_us(rates_of(values, name), evidence.features[name])]) for name in PROCESSORS}  # type: ignore[misc]

    def pricing(branch: Branch) -> tuple[float, float]:
        processor, first, last = evidence.spans[id(branch)]
        return float(sums[processor][last] - sums[processor][first]), 0.0

    return {config: sum(cost.latency_us for cost in costs(evidence.networks[config], soc, pricing)) for config in configs}


def predict_kernels(values: Mapping[str, float], evidence: Evidence) -> np.ndarray:
    return np.asarray(latency_us(rates_of(values, "gpu"), evidence.gpu_kernels))


def fit(evidence: Evidence, configs: Sequence[str], with_kernels: bool) -> dict[str, float]:
    weights = np.array([DOUBTED.get(config, 1.0) for config in configs])
    measured = np.array([evidence.measured_us[config] for config in configs])

    def residuals(logs: np.ndarray) -> np.ndarray:
        values = dict(zip(NAMES, np.exp(logs), strict=True))
        networks = weights * np.log(np.array(list(predict(values, evidence, configs).values())) / measured)
        kernels = KERNEL_WEIGHT * np.log(predict_kernels(values, evidence) / evidence.kernel_us) if with_kernels else np.zeros(0)
        return np.concatenate([networks, kernels, PULL * (logs - np.log(START)) / SPREAD])

    bounds = (np.log(LOW) - 1e-9, np.log(HIGH))
    found = least_squares(residuals, np.log(START), bounds=bounds, max_nfev=200)
    return {name: rounded(max(low, float(value))) for name, value, low in zip(NAMES, np.exp(found.x), LOW, strict=True)}


def rounded(value: float) -> float:
    """Four digits: more than the data knows, few enough to be the same on every machine."""
    return float(f"{value:.4g}")


def held_out(evidence: Evidence) -> dict[str, float]:
    """Error of every row, fitted without any row of its network; R-34 also without its kernels."""
    errors: dict[str, float] = {}
    for model in dict.fromkeys(evidence.model.values()):
        held = [config for config, owner in evidence.model.items() if owner == model]
        values = fit(evidence, [config for config in evidence.measured_us if config not in held], with_kernels=model != "R-34")
        errors |= relative(predict(values, evidence, held), evidence.measured_us)
    return {config: errors[config] for config in evidence.measured_us}


def relative(predicted: Mapping[str, float], measured: Mapping[str, float]) -> dict[str, float]:
    return {config: value / measured[config] - 1 for config, value in predicted.items()}


def without_stages(values: Mapping[str, float], evidence: Evidence) -> float:
    """Error on EN-L4-CD if its measured graph lacked the stages that its builder is known to have skipped."""
    parts = {"EN-L4-CD": tuple(part for part in evidence.networks["EN-L4-CD"] if part.name not in ("s1", "s7"))}
    return relative(predict(values, replace(evidence, networks=parts), ["EN-L4-CD"]), evidence.measured_us)["EN-L4-CD"]


def document(soc: Soc, out: Path) -> None:
    """The chip and its processors as the loader reads them."""
    for name, predictor in soc.predictors.items():
        assert isinstance(predictor, Analytic)
        data = {"format": 1, "processor": name, "form": "analytic", "dtype": soc.dtype, "relative_error": predictor.relative_error}
        write_json(out / f"{name}.json", data | {"rates": {key: getattr(predictor.rates, key) for key in RATES}})
    processors = [
        {"name": p.name, "kind": p.kind, "queue_depth": p.queue_depth, "asynchronous": p.asynchronous, "copy_in": link(p.copy_in)}
        | {"copy_out": link(p.copy_out), "sync_us": p.sync_us, "memory_bytes": p.memory_bytes}
        for p in soc.processors
    ]
    together = [{"processors": sorted(names), "factor": factor} for names, factor in soc.contention.items()]
    head = {"format": 1, "name": soc.name, "dtype": soc.dtype, "calibrated": soc.calibrated, "provenance": soc.provenance}
    write_json(out / "soc.json", head | {"processors": processors, "merge": link(soc.merge), "contention": together})


def link(value: Link) -> dict[str, float]:
    return {"fixed_us": value.fixed_us, "us_per_kib": value.us_per_kib}


def write_json(path: Path, data: Any) -> None:
    write_text(path, json.dumps(data, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT / "tests/data/nn_stretch")
    parser.add_argument("--out", type=Path, default=ROOT / "latency_predictors/mi9")
    args = parser.parse_args()
    evidence = gather(args.data)
    values = fit(evidence, list(evidence.measured_us), with_kernels=True)
    fitted = relative(predict(values, evidence, list(evidence.measured_us)), evidence.measured_us)
    held = held_out(evidence)
    letters = {"cpu": "-C", "gpu": "-G", "dsp": "-D"}
    rms = {p: rounded(float(np.sqrt(np.mean([e**2 for c, e in held.items() if c.endswith(s)])))) for p, s in letters.items()}
    text, provenance = card(values, evidence, fitted, held, predict_kernels(values, evidence), without_stages(values, evidence))
    args.out.mkdir(parents=True, exist_ok=True)
    document(soc_of(values, evidence.crossing, rms, provenance), args.out)
    write_text(args.out / "CARD.md", text)
    print(text)


if __name__ == "__main__":
    main()
