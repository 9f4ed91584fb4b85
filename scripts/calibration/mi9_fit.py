"""Fit the mi9 predictors on the published measurements and write latency_predictors/mi9.

Three sources: 24 whole-network latencies, 26 single GPU kernels, and the waits around four meeting
points. Crossing to the GPU and merging are read off the waits directly; everything else is one
least-squares fit of log ratios, bounded and lightly pulled towards its start so that the few
networks decide only what they can decide. Deterministic: fixed start, no random numbers.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from mi9_card import Errors, branched_error, branched_rows, card
from mi9_measurements import PROCESSORS, RATES, Crossing, Evidence, gather, rounded
from mi9_parameters import HIGH, LOW, NAMES, PARAMETERS, SPREAD, START
from scipy.optimize import least_squares  # type: ignore[import-untyped]

from nnstretch.files.atomic import write_text
from nnstretch.predict.op_list import OpListBranch, segment_costs
from nnstretch.predict.roofline import Rates, Roofline, latency_us
from nnstretch.predict.sampled_range import Ranges
from nnstretch.predict.save_soc import save_soc
from nnstretch.soc import BranchedError, Link, Neighbour, Processor, Soc, processor_of

ROOT = Path(__file__).parents[2]
KERNEL_WEIGHT = 0.2
"""26 kernels of one network must not outvote 24 networks."""
STAGE_WEIGHTS = {"kernels": KERNEL_WEIGHT, "rest": 0.2, "host": 0.1, "dsp": 0.1}
"""Terms of four meeting points, from two profiled runs."""
PULL = 0.1
"""Weight of the pull towards the start, per factor of e."""
BUSY_FACTOR = 2.0
"""A blocking call holds one of the four threads that share each layer in equal parts.

The part of that thread takes twice as long, and so does the layer. Fitted freely it is 2.06.
"""
QUEUE_DEPTH = {"cpu": 1, "gpu": 4, "dsp": 1}


def rates_of(values: Mapping[str, float], processor: str) -> Rates:
    """What was not fitted for a processor costs nothing there."""
    return Rates(**{name: values.get(f"{processor}.{name}", 0.0) for name in RATES})


def soc_of(
    values: Mapping[str, float],
    across: Crossing,
    errors: Mapping[str, float],
    sampled: Mapping[str, Mapping[str, Ranges]],
    provenance: str = "",
    off: BranchedError | None = None,
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
                across.gpu_in + across.convert,
                across.gpu_out,
                across.enqueue.fixed_us + values["gpu.wake_us"],
                enqueue_us=across.enqueue.fixed_us,
            ),
            Processor(
                "dsp", "dsp", QUEUE_DEPTH["dsp"], dsp, Link(0.0, dsp.us_per_kib), asynchronous=False
            ),
        ),
        dtype="int8",
        predictors={
            name: Roofline(
                name, "int8", rates_of(values, name), errors.get(name, 0.0), sampled.get(name, {})
            )
            for name in PROCESSORS
        },
        merge=across.merge,
        provenance=provenance,
        neighbours=(
            Neighbour("cpu", "dsp", BUSY_FACTOR),
            Neighbour("cpu", "gpu", copy_in=across.convert),
        ),
        branched_error=off,
    )


def predict(
    values: Mapping[str, float], evidence: Evidence, configs: Sequence[str]
) -> dict[str, float]:
    """Whole networks through the very formula that prices plans."""
    soc = soc_of(values, evidence.crossing, {}, {})
    sums: dict[str, np.ndarray] = {}
    for key in soc.price_keys(PROCESSORS):
        predictor: Any = soc.predictor(key)
        features = evidence.features[processor_of(key)]
        times_us = np.asarray(latency_us(predictor.rates, features, predictor.busy_factor))
        sums[key] = np.concatenate([[0.0], np.cumsum(times_us)])

    def pricing(branch: OpListBranch, price_key: str) -> tuple[float, float]:
        _, first, last = evidence.spans[id(branch)]
        return float(sums[price_key][last] - sums[price_key][first]), 0.0

    return {
        config: sum(
            cost.latency_us for cost in segment_costs(evidence.networks[config], soc, pricing)
        )
        for config in configs
    }


class FitPredictions:
    """Predictions of a fit, which moves one parameter at a time.

    A network is predicted anew where a parameter of a processor that it runs on has moved.
    """

    def __init__(self, evidence: Evidence, configs: Sequence[str]) -> None:
        self._evidence, self._configs = evidence, configs
        self._places = {config: parameters_of(evidence, config) for config in configs}
        self._known: dict[tuple[str, bytes], float] = {}

    def at(self, parameters: np.ndarray) -> list[float]:
        """Return the latency of each network."""
        keys = {c: (c, parameters[places].tobytes()) for c, places in self._places.items()}
        missing = [config for config, key in keys.items() if key not in self._known]
        values = dict(zip(NAMES, parameters, strict=True))
        for config, time_us in predict(values, self._evidence, missing).items():
            self._known[keys[config]] = time_us
        return [self._known[key] for key in keys.values()]


def parameters_of(evidence: Evidence, config: str) -> np.ndarray:
    """Return which parameters are of the processors that a network runs on."""
    parts = evidence.networks[config]
    processors = {branch.processor for part in parts for branch in part.branches}
    return np.array([name.partition(".")[0] in processors for name in NAMES])


def predict_kernels(values: Mapping[str, float], evidence: Evidence) -> np.ndarray:
    return np.asarray(latency_us(rates_of(values, "gpu"), evidence.gpu_kernels))


def predict_stages(values: Mapping[str, float], evidence: Evidence) -> dict[str, np.ndarray]:
    """The terms of every meeting point of R-34-DG, as `segment_cost` prices them."""
    across, dsp = evidence.crossing, rates_of(values, "dsp")
    kernels = np.bincount(evidence.stage, predict_kernels(values, evidence))
    merged_kib = [s.gpu_kib_out + s.dsp_kib_out for s in evidence.stages]
    launch = np.array([across.gpu_in.cost_us(1024 * s.kib_in) for s in evidence.stages])
    output = np.array([across.gpu_out.cost_us(1024 * s.gpu_kib_out) for s in evidence.stages])
    merge = np.array([across.merge.cost_us(1024 * kib) for kib in merged_kib])
    moved_kib = np.array([s.kib_in + s.dsp_kib_out for s in evidence.stages])
    crossing_us = values["dsp.fixed_us"] + values["dsp.us_per_kib"] * moved_kib
    branch_us = [float(np.sum(latency_us(dsp, s.dsp_kernels))) for s in evidence.stages]
    rest = values["gpu.wake_us"] + np.array(
        [across.enqueue.cost_us(1024 * s.kib_in) for s in evidence.stages]
    )
    return {
        "kernels": kernels,
        "launch": launch,
        "output": output,
        "rest": rest,
        "host": launch + kernels + output + rest,
        "merge": merge,
        "dsp": crossing_us + branch_us,
    }


def measured_stages(evidence: Evidence) -> dict[str, np.ndarray]:
    names = ("kernels", "launch", "output", "rest", "merge", "dsp")
    terms = {n: np.array([getattr(s, f"{n}_us") for s in evidence.stages]) for n in names}
    return terms | {"host": np.array([s.enqueue_us + s.wait_us for s in evidence.stages])}


def stage_residuals(values: Mapping[str, float], evidence: Evidence) -> np.ndarray:
    predicted, measured = predict_stages(values, evidence), measured_stages(evidence)
    logs = [KERNEL_WEIGHT * np.log(predict_kernels(values, evidence) / evidence.kernel_us)]
    for name, weight in STAGE_WEIGHTS.items():
        logs.append(weight * np.log(predicted[name] / measured[name]))
    return np.concatenate(logs)


def fit(evidence: Evidence, configs: Sequence[str], with_stages: bool = True) -> dict[str, float]:
    measured = np.array([evidence.measured_us[config] for config in configs])
    predictions = FitPredictions(evidence, configs)

    def residuals(logs: np.ndarray) -> np.ndarray:
        parameters = np.exp(logs)
        values = dict(zip(NAMES, parameters, strict=True))
        networks = np.log(np.array(predictions.at(parameters)) / measured)
        stages = stage_residuals(values, evidence) if with_stages else np.zeros(0)
        return np.concatenate([networks, stages, PULL * (logs - np.log(START)) / SPREAD])

    bounds = (np.log(LOW) - 1e-9, np.log(HIGH) + 1e-9)
    solution = least_squares(residuals, np.log(START), bounds=bounds, max_nfev=60)
    return {
        p.name: min(p.high, max(p.low, rounded(float(value))))
        for p, value in zip(PARAMETERS, np.exp(solution.x), strict=True)
    }


def network_left_out(evidence: Evidence) -> dict[str, float]:
    """Return the error of every row, fitted without any row of its network.

    R-34 also without its kernels and waits.
    """
    errors: dict[str, float] = {}
    for model in dict.fromkeys(evidence.model.values()):
        held_out = [config for config, owner in evidence.model.items() if owner == model]
        kept = [config for config in evidence.measured_us if config not in held_out]
        values = fit(evidence, kept, with_stages=model != "R-34")
        errors |= relative(predict(values, evidence, held_out), evidence.measured_us)
    return {config: errors[config] for config in evidence.measured_us}


def row_left_out(evidence: Evidence) -> dict[str, float]:
    """Return the error of every row, fitted on all others."""
    errors: dict[str, float] = {}
    for config in evidence.measured_us:
        values = fit(evidence, [name for name in evidence.measured_us if name != config])
        errors |= relative(predict(values, evidence, [config]), evidence.measured_us)
    return errors


def relative(predicted: Mapping[str, float], measured: Mapping[str, float]) -> dict[str, float]:
    return {config: value / measured[config] - 1 for config, value in predicted.items()}


def without_stages(values: Mapping[str, float], evidence: Evidence) -> float:
    """Return the error on EN-L4-CD if its measured graph lacked the stages that its builder is
    known to have skipped.
    """
    name = "EN-L4-CD"
    parts = tuple(p for p in evidence.networks[name] if p.name not in ("s1", "s7"))
    predicted = predict(values, replace(evidence, networks={name: parts}), [name])
    return relative(predicted, evidence.measured_us)[name]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, default=ROOT / "tests/data/nn_stretch")
    parser.add_argument("--out", type=Path, default=ROOT / "latency_predictors/mi9")


def run(args: argparse.Namespace) -> int:
    evidence = gather(args.data)
    configs = list(evidence.measured_us)
    values = fit(evidence, configs)
    errors = Errors(
        fitted=relative(predict(values, evidence, configs), evidence.measured_us),
        network_left_out=network_left_out(evidence),
        row_left_out=row_left_out(evidence),
        kernels=predict_kernels(values, evidence) / evidence.kernel_us - 1,
        stages_measured=measured_stages(evidence),
        stages_predicted=predict_stages(values, evidence),
        without_stages=without_stages(values, evidence),
    )
    rms = {}
    for processor, letter in {"cpu": "-C", "gpu": "-G", "dsp": "-D"}.items():
        squares = [e**2 for c, e in errors.network_left_out.items() if c.endswith(letter)]
        rms[processor] = rounded(float(np.sqrt(np.mean(squares))))
    text, provenance = card(values, evidence, errors, BUSY_FACTOR)
    across, sampled = evidence.crossing, evidence.sampled
    off = branched_error(branched_rows(errors.row_left_out))
    save_soc(soc_of(values, across, rms, sampled, provenance, off), args.out)
    write_text(args.out / "CARD.md", text)
    print(text)
    return 0
