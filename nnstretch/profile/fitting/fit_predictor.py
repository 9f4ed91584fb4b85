"""Measured kernels -> a `Learned` predictor.

Non-negative rates, boosted trees that only rise with size, intervals from left-out kernels.

Deterministic: folds are dealt by rank of size, and the trees grow from a fixed seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from nnstretch.errors import BadInput
from nnstretch.graph import ELEMENT_BYTES
from nnstretch.predict.features import Numbers, feature_batch
from nnstretch.predict.kernel_family import ErrorQuantiles, KernelFamily
from nnstretch.predict.learned import Learned, kernel_family
from nnstretch.predict.sampled_range import RANGED
from nnstretch.profile.fitting.error_quantiles import error_quantiles, root_mean_square
from nnstretch.profile.fitting.rate_model import fit_rates, terms_for
from nnstretch.profile.fitting.training_kernels import TrainingKernels
from nnstretch.profile.fitting.trees import GROWTHS, TreeSettings, grow_trees
from nnstretch.profile.sampling.sample import Sample

FOLDS = 5
NOISE = 0.04
"""Relative spread below which one measurement counts no more than another."""
MANY = 100
"""Samples that trees need."""
BETTER = 0.98
"""Share of the error without trees that trees must get below."""


def fit(
    samples: Sequence[Sample],
    processor: str,
    dtype: str,
    growths: Sequence[TreeSettings] = GROWTHS,
    may_grow: Callable[[str, int], bool] = lambda name, count: True,
) -> Learned:
    """Fit a predictor to measured kernels; seconds for thousands of samples.

    `may_grow` is asked whether there is time to grow trees for a family of so many samples.

    Raises BadInput where there is none, or one that took no time.
    """
    check_samples(samples, processor)
    data = training_kernels(samples, dtype)
    names = np.array([kernel_family(form) for form in data.kernels.forms])[data.kernels.form]
    families: dict[str, KernelFamily] = {}
    residuals: dict[str, Numbers] = {}
    latencies_us: list[Numbers] = []
    for name, count in Counter(names.tolist()).most_common():
        rows = np.flatnonzero(names == name)
        grows = count >= MANY and bool(growths) and may_grow(name, count)
        families[name], residuals[name] = fit_family(data.take(rows), growths if grows else ())
        latencies_us.append(data.latency_us[rows])
    pooled = np.concatenate(list(residuals.values()))
    usual = (root_mean_square(pooled),)
    for name, residual in residuals.items():
        if len(residual) < FOLDS:  # too few to be held out one after the other
            spread = replace(error_quantiles(2 * pooled, pooled, most=1), error=usual)
            families[name] = replace(families[name], spread=spread)
    error = root_mean_square(pooled, np.concatenate(latencies_us))
    return Learned(processor, dtype, families, error)


def check_samples(samples: Sequence[Sample], processor: str) -> None:
    """Check that there are samples and that each took a positive time.

    Raises BadInput otherwise.
    """
    if not samples:
        raise BadInput(f"0 samples, processor {processor}, needed is at least 1")
    for sample in samples:
        latencies_us = sample.latencies_us
        if latencies_us and np.isfinite(latencies_us).all() and min(latencies_us) > 0:
            continue
        raise BadInput(
            f"latencies {latencies_us} us, kernel {sample.kernel.name}, needed are positive numbers"
        )


def training_kernels(samples: Sequence[Sample], dtype: str) -> TrainingKernels:
    """Return the samples as arrays; those that spread widely weigh less."""
    spread = np.array([sample.spread for sample in samples])
    weight = 1 / np.sqrt(NOISE**2 + spread**2)
    return TrainingKernels(
        kernels=feature_batch([sample.kernel for sample in samples], ELEMENT_BYTES[dtype]),
        latency_us=np.array([sample.latency_us for sample in samples]),
        weight=weight / weight.max(),
    )


def fit_family(
    data: TrainingKernels, growths: Sequence[TreeSettings]
) -> tuple[KernelFamily, Numbers]:
    """Fit the model that errs least on held-out samples.

    Returns it with log(measured / estimated) of each held-out sample.
    """
    candidates: list[TreeSettings | None] = [None, *growths]
    residuals = [cross_validated_errors(data, growth) for growth in candidates]
    errors = [float(np.mean(np.abs(residual))) for residual in residuals]
    errors[0] *= BETTER
    best = int(np.argmin(errors))
    family = fit_model(data, candidates[best])
    spread = error_quantiles(residuals[best], family.rate_model_us(data.kernels))
    return replace(family, spread=spread), residuals[best]


def cross_validated_errors(data: TrainingKernels, growth: TreeSettings | None) -> Numbers:
    """Return log(measured / estimated) of every sample by a model that never saw it."""
    residual = np.zeros(len(data.latency_us))
    fold = assign_folds(data.latency_us)
    for fold_number in range(fold.max() + 1):
        tested = np.flatnonzero(fold == fold_number)
        trained = np.flatnonzero(fold != fold_number)
        model = fit_model(data.take(trained if len(trained) else tested), growth)
        part = data.take(tested)
        estimated_us = model.latency_us(part.kernels, model.rate_model_us(part.kernels))
        residual[tested] = np.log(part.latency_us / estimated_us)
    return residual


def assign_folds(size: Numbers) -> NDArray[np.intp]:
    """Assign samples to folds; neighbors in size go to different ones."""
    rounds = -(-len(size) // FOLDS)
    deals = np.tile(np.arange(FOLDS), (rounds, 1))
    dealt = np.random.default_rng(0).permuted(deals, axis=1).reshape(-1)
    fold = np.empty(len(size), dtype=np.intp)
    fold[np.argsort(size, kind="stable")] = dealt[: len(size)]
    return fold


def fit_model(data: TrainingKernels, growth: TreeSettings | None) -> KernelFamily:
    """Fit the rates, then the trees on what the rates leave."""
    rates = KernelFamily(
        terms=fit_rates(terms_for(data), data),
        floor_us=float(data.latency_us.min() / 4),
        ops=data.operators(),
        followers=data.followers(),
        macs=range_of(data.kernels.column("macs")),
        working_bytes=range_of(data.kernels.column("working_bytes")),
        ranges={name: range_of(data.kernels.column(name)) for name in RANGED},
        analytic_us=(1.0, 1.0),
        spread=ErrorQuantiles((0.0,), (0.0,), (0.0,), (0.0,)),
    )
    if growth is None:
        return rates
    size = rates.rate_model_us(data.kernels)
    return grow_trees(replace(rates, analytic_us=range_of(size)), data, size, growth)


def range_of(values: Numbers) -> tuple[float, float]:
    """Return the least and the largest value."""
    return float(values.min()), float(values.max())
