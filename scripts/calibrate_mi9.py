"""Fit the mi9 predictors on the published measurements and write latency_predictors/mi9.

    python scripts/calibrate_mi9.py [--data tests/data/nn_stretch] [--out latency_predictors/mi9]

Three sources: 24 whole-network latencies, 26 single GPU kernels, and the waits around four meeting
points. Crossing to the GPU and merging are read off the waits directly; everything else is one
least-squares fit of log ratios, bounded and lightly pulled towards its start so that the few
networks decide only what they can decide. Deterministic: fixed start, no random numbers.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from calibration_card import Errors, card
from calibration_data import PROCESSORS, RATES, Crossing, Evidence, gather, rounded
from scipy.optimize import least_squares  # type: ignore[import-untyped]

from nnstretch.files.atomic import write_text
from nnstretch.predict.op_list import OpListBranch, segment_costs
from nnstretch.predict.roofline import Rates, Roofline, latency_us
from nnstretch.predict.save_soc import save_soc
from nnstretch.soc import Link, Processor, Soc

ROOT = Path(__file__).parents[1]
KERNEL_WEIGHT = 0.2
"""26 kernels of one network must not outvote 24 networks.

The same for their sum in each of its stages.
"""
STAGE_WEIGHTS = {"kernels": KERNEL_WEIGHT, "rest": 0.2, "host": 0.1, "dsp": 0.1}
"""Terms of four meeting points, from two profiled runs."""
PULL = 0.1
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
    Parameter(
        "cpu.dense_macs_per_us", 250e3, 60e3, 323e3, 0.5
    ),  # 32 MACs a cycle on cores of 2.84 and 3 x 2.42 GHz: 323e3 is the peak
    Parameter("cpu.depthwise_macs_per_us", 20e3, 3e3, 200e3),
    Parameter("cpu.fill_outputs", 3000, 10, 100e3),
    Parameter("cpu.bytes_per_us", 5000, 100, 20e3),
    Parameter("cpu.group_us", 20, 0.5, 200),
    Parameter(
        "cpu.piece_us_per_thousand", 5, 0.2, 100
    ),  # a call that copies 24 to 40 bytes takes some 5 ns
    Parameter("cpu.patch_us_per_kib", 0.1, 1e-3, 10),  # one thread copies some 10 GB/s
    Parameter(
        "cpu.elementwise_us_per_kib", 1, 0.01, 3
    ),  # one thread requantises some 1 element a nanosecond
    Parameter(
        "cpu.out_us_per_kib", 1, 0.01, 3
    ),  # so does whatever brings a branch to the scale of the concatenation
    Parameter("gpu.launch_us", 15, 1, 80, 0.7),
    Parameter("gpu.dense_macs_per_us", 142e3, 40e3, 400e3, 0.5),
    Parameter("gpu.depthwise_macs_per_us", 20e3, 3e3, 200e3),
    Parameter("gpu.fill_outputs", 20e3, 100, 200e3),
    Parameter("gpu.bytes_per_us", 10e3, 200, 17e3),  # half floats through 34 GB/s: 17e3 elements
    Parameter("gpu.group_us", 30, 0.5, 300),
    Parameter("gpu.piece_us_per_thousand", 2, 0.1, 100),
    Parameter("dsp.launch_us", 10, 1, 100),
    Parameter("dsp.dense_macs_per_us", 300e3, 60e3, 1500e3, 0.5),
    Parameter("dsp.depthwise_macs_per_us", 20e3, 3e3, 200e3),
    Parameter("dsp.half_channels", 8, 0.1, 100),
    Parameter("dsp.bytes_per_us", 5000, 200, 30e3),
    Parameter("dsp.group_us", 30, 0.5, 300),
    Parameter("dsp.piece_us_per_thousand", 2, 0.1, 100),
    Parameter("gpu.sync_us", 500, 50, 2000, 0.5),
    Parameter("dsp.fixed_us", 150, 10, 1000),
    Parameter("dsp.us_per_kib", 0.5, 0.05, 5),
    Parameter("cpu+gpu", 1.1, 1, 2),
    Parameter("cpu+dsp", 1.1, 1, 2),
)
NAMES = tuple(p.name for p in PARAMETERS)
START, LOW, HIGH, SPREAD = (
    np.array([getattr(p, key) for p in PARAMETERS], float)
    for key in ("start", "low", "high", "spread")
)
QUEUE_DEPTH = {"cpu": 1, "gpu": 4, "dsp": 1}
GPU_ENQUEUE_US = 366.0
"""Mean over the four meeting points of R-34-DG; `gpu.sync_us` contains it."""


def rates_of(values: Mapping[str, float], processor: str) -> Rates:
    """What was not fitted for a processor costs nothing there."""
    return Rates(**{name: values.get(f"{processor}.{name}", 0.0) for name in RATES})


def soc_of(
    values: Mapping[str, float], across: Crossing, errors: Mapping[str, float], provenance: str = ""
) -> Soc:
    dsp = Link(values["dsp.fixed_us"], values["dsp.us_per_kib"])
    return Soc(
        name="mi9",
        processors=(
            Processor(
                "cpu",
                "cpu",
                QUEUE_DEPTH["cpu"],
                Link(),
                Link(0.0, values["cpu.out_us_per_kib"]),
                asynchronous=False,
            ),
            Processor(
                "gpu",
                "gpu",
                QUEUE_DEPTH["gpu"],
                across.gpu_in,
                across.gpu_out,
                values["gpu.sync_us"],
                enqueue_us=GPU_ENQUEUE_US,
            ),
            Processor(
                "dsp", "dsp", QUEUE_DEPTH["dsp"], dsp, Link(0.0, dsp.us_per_kib), asynchronous=False
            ),
        ),
        dtype="int8",
        predictors={
            name: Roofline(name, "int8", rates_of(values, name), errors.get(name, 0.0))
            for name in PROCESSORS
        },
        merge=across.merge,
        contention={
            frozenset(("cpu", "gpu")): values["cpu+gpu"],
            frozenset(("cpu", "dsp")): values["cpu+dsp"],
        },
        provenance=provenance,
    )


def predict(
    values: Mapping[str, float], evidence: Evidence, configs: Sequence[str]
) -> dict[str, float]:
    """Whole networks through the very formula that prices plans."""
    soc = soc_of(values, evidence.crossing, {})
    sums = {
        name: np.cumsum([0.0, *latency_us(rates_of(values, name), evidence.features[name])])
        for name in PROCESSORS
    }  # type: ignore[misc]

    def pricing(branch: OpListBranch) -> tuple[float, float]:
        processor, first, last = evidence.spans[id(branch)]
        return float(sums[processor][last] - sums[processor][first]), 0.0

    return {
        config: sum(
            cost.latency_us for cost in segment_costs(evidence.networks[config], soc, pricing)
        )
        for config in configs
    }


def predict_kernels(values: Mapping[str, float], evidence: Evidence) -> np.ndarray:
    return np.asarray(latency_us(rates_of(values, "gpu"), evidence.gpu_kernels))


def predict_stages(values: Mapping[str, float], evidence: Evidence) -> dict[str, np.ndarray]:
    """The terms of every meeting point of R-34-DG, as `segment_cost` prices them."""
    across, dsp = evidence.crossing, rates_of(values, "dsp")
    kernels = np.bincount(evidence.stage, predict_kernels(values, evidence))
    launch, output, merge = (
        np.array([link.cost_us(1024 * kib) for kib in moved])
        for link, moved in (
            (across.gpu_in, [s.kib_in for s in evidence.stages]),
            (across.gpu_out, [s.gpu_kib_out for s in evidence.stages]),
            (across.merge, [s.gpu_kib_out + s.dsp_kib_out for s in evidence.stages]),
        )
    )
    moved_kib = np.array([s.kib_in + s.dsp_kib_out for s in evidence.stages])
    there = values["dsp.fixed_us"] + values["dsp.us_per_kib"] * moved_kib
    rest = np.full(len(kernels), values["gpu.sync_us"])
    return {
        "kernels": kernels,
        "launch": launch,
        "output": output,
        "rest": rest,
        "host": launch + kernels + output + rest,
        "merge": merge,
        "dsp": there + [float(np.sum(latency_us(dsp, s.dsp_kernels))) for s in evidence.stages],
    }


def measured_stages(evidence: Evidence) -> dict[str, np.ndarray]:
    keys = {
        "kernels": "kernels_us",
        "launch": "launch_us",
        "output": "output_us",
        "rest": "rest_us",
        "merge": "merge_us",
        "dsp": "dsp_us",
    }
    found = {
        name: np.array([getattr(s, key) for s in evidence.stages]) for name, key in keys.items()
    }
    return found | {"host": np.array([s.enqueue_us + s.wait_us for s in evidence.stages])}


def stage_residuals(values: Mapping[str, float], evidence: Evidence) -> np.ndarray:
    predicted, measured = predict_stages(values, evidence), measured_stages(evidence)
    single = KERNEL_WEIGHT * np.log(predict_kernels(values, evidence) / evidence.kernel_us)
    return np.concatenate(
        [
            single,
            *(
                weight * np.log(predicted[name] / measured[name])
                for name, weight in STAGE_WEIGHTS.items()
            ),
        ]
    )


def fit(evidence: Evidence, configs: Sequence[str], with_stages: bool = True) -> dict[str, float]:
    weights = np.array([DOUBTED.get(config, 1.0) for config in configs])
    measured = np.array([evidence.measured_us[config] for config in configs])

    def residuals(logs: np.ndarray) -> np.ndarray:
        values = dict(zip(NAMES, np.exp(logs), strict=True))
        networks = weights * np.log(
            np.array(list(predict(values, evidence, configs).values())) / measured
        )
        stages = stage_residuals(values, evidence) if with_stages else np.zeros(0)
        return np.concatenate([networks, stages, PULL * (logs - np.log(START)) / SPREAD])

    bounds = (np.log(LOW) - 1e-9, np.log(HIGH) + 1e-9)
    found = least_squares(residuals, np.log(START), bounds=bounds, max_nfev=60)
    return {
        p.name: min(p.high, max(p.low, rounded(float(value))))
        for p, value in zip(PARAMETERS, np.exp(found.x), strict=True)
    }


def network_left_out(evidence: Evidence) -> dict[str, float]:
    """Error of every row, fitted without any row of its network.

    R-34 also without its kernels and waits.
    """
    errors: dict[str, float] = {}
    for model in dict.fromkeys(evidence.model.values()):
        held = [config for config, owner in evidence.model.items() if owner == model]
        values = fit(
            evidence,
            [config for config in evidence.measured_us if config not in held],
            with_stages=model != "R-34",
        )
        errors |= relative(predict(values, evidence, held), evidence.measured_us)
    return {config: errors[config] for config in evidence.measured_us}


def row_left_out(evidence: Evidence) -> dict[str, float]:
    """Error of every branched row, fitted on all others.

    Its network is known on single processors only.
    """
    errors: dict[str, float] = {}
    for config in (name for name in evidence.measured_us if len(name.rsplit("-", 1)[1]) > 1):
        values = fit(evidence, [other for other in evidence.measured_us if other != config])
        errors |= relative(predict(values, evidence, [config]), evidence.measured_us)
    return errors


def relative(predicted: Mapping[str, float], measured: Mapping[str, float]) -> dict[str, float]:
    return {config: value / measured[config] - 1 for config, value in predicted.items()}


def without_stages(values: Mapping[str, float], evidence: Evidence) -> float:
    """Error on EN-L4-CD if its measured graph lacked the stages that its builder is known to have
    skipped.
    """
    parts = {
        "EN-L4-CD": tuple(
            part for part in evidence.networks["EN-L4-CD"] if part.name not in ("s1", "s7")
        )
    }
    return relative(
        predict(values, replace(evidence, networks=parts), ["EN-L4-CD"]), evidence.measured_us
    )["EN-L4-CD"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=ROOT / "tests/data/nn_stretch")
    parser.add_argument("--out", type=Path, default=ROOT / "latency_predictors/mi9")
    args = parser.parse_args()
    evidence = gather(args.data)
    values = fit(evidence, list(evidence.measured_us))
    errors = Errors(
        fitted=relative(
            predict(values, evidence, list(evidence.measured_us)), evidence.measured_us
        ),
        network_left_out=network_left_out(evidence),
        row_left_out=row_left_out(evidence),
        kernels=predict_kernels(values, evidence) / evidence.kernel_us - 1,
        stages_measured=measured_stages(evidence),
        stages_predicted=predict_stages(values, evidence),
        without_stages=without_stages(values, evidence),
    )
    held, letters = errors.network_left_out, {"cpu": "-C", "gpu": "-G", "dsp": "-D"}
    rms = {
        p: rounded(float(np.sqrt(np.mean([e**2 for c, e in held.items() if c.endswith(s)]))))
        for p, s in letters.items()
    }
    text, provenance = card(values, evidence, errors)
    save_soc(soc_of(values, evidence.crossing, rms, provenance), args.out)
    write_text(args.out / "CARD.md", text)
    print(text)


if __name__ == "__main__":
    main()
