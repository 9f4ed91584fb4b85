"""Measured kernels -> a `Learned` predictor.

Non-negative rates, boosted trees that only rise with size, intervals from left-out kernels.

Deterministic: folds are dealt by rank of size, and the trees grow from a fixed seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls  # type: ignore[import-untyped]
from sklearn.ensemble import HistGradientBoostingRegressor  # type: ignore[import-untyped]

from nnstretch.errors import BadInput
from nnstretch.graph import ELEMENT_BYTES
from nnstretch.predict.boosted_trees import Forest, Tree
from nnstretch.predict.features import GROWS, FeatureBatch, Numbers, feature_batch
from nnstretch.predict.kernel_family import ErrorQuantiles, KernelFamily, RateTerm
from nnstretch.predict.learned import Learned, kernel_family
from nnstretch.predict.sampled_range import RANGED
from nnstretch.profile.sampling.sample import Sample

MIB = 2.0**20
FOLDS = 5
BEYOND = 40
"""Samples beyond a threshold before what exceeds it may count.

A few would say anything about what lies further out.
"""
NOISE = 0.04
"""Relative spread below which one measurement counts no more than another."""
ROUNDS = 5
OUTLIER = 0.2
"""Error from which a sample's weight falls."""
FEW = 20
"""Samples below which a family has the plainest terms and no fold decides anything."""
SOME = 60
"""Samples below which it has only the commonest terms."""
MANY = 100
"""Samples that trees need."""
FLAGGED = 5
"""Samples that an operator or a follower needs for more than one term of its own."""
BETTER = 0.98
"""Share of the error without trees that trees must get below."""
CLASS = 40
"""Samples that one class of sizes needs for an interval of its own."""
COVERED = 0.9

WORK = (
    RateTerm("one", 1),
    RateTerm("macs", 1),
    RateTerm("padded_macs", 1),
    RateTerm("row_macs", 1),
    RateTerm("windows", 1),
    RateTerm("patches", 1),
    RateTerm("read_bytes", 1),
    RateTerm("write_bytes", 1),
    RateTerm("weight_bytes", 1),
    RateTerm("groups", 1),
    RateTerm("taps", 1),
    RateTerm("inputs", 1),
    RateTerm("rows", 1),
    RateTerm("cout", 1),
    RateTerm("tile_macs", 1),
    RateTerm("square_macs", 1),
    RateTerm("step_macs", 1),
    RateTerm("read_sweeps", 1),
    RateTerm("write_sweeps", 1),
    RateTerm("weight_sweeps", 1),
    RateTerm("lines", 1),
    RateTerm("calls", 1),
    RateTerm("block_writes", 1),
    RateTerm("block_taps", 1),
    RateTerm("step_taps", 1),
    RateTerm("working_bytes", 1, MIB),
    RateTerm("working_bytes", 1, 4 * MIB),
    RateTerm("working_bytes", 1, 16 * MIB),
    RateTerm("weight_bytes", 1, MIB / 2),
    RateTerm("weight_bytes", 1, 2 * MIB),
    RateTerm("moved_bytes", 1, MIB / 4),
    RateTerm("moved_bytes", 1, MIB),
)
"""Ways in which work may take time; the fit drops what does not."""
COMMON = tuple(
    RateTerm(name, 1)
    for name in (
        "one",
        "inputs",
        "macs",
        "padded_macs",
        "read_bytes",
        "write_bytes",
        "weight_bytes",
        "cout",
        "taps",
    )
)
PLAIN = (RateTerm("one", 1), RateTerm("moved_bytes", 1), RateTerm("macs", 1))
SEEN = (
    "cin",
    "cout",
    "hw_in",
    "hw_out",
    "kernel",
    "stride",
    "groups",
    "batch",
    "macs",
    "padded_macs",
    "tile_macs",
    "square_macs",
    "windows",
    "patches",
    "taps",
    "inputs",
    "read_bytes",
    "write_bytes",
    "weight_bytes",
    "working_bytes",
    "cin_per_group",
    "cout_per_group",
    "rows",
    "reduction",
)
"""What the trees may look at."""


@dataclass(frozen=True, slots=True)
class TreeSettings:
    """How the trees grow, and how much they are left to explain."""

    power: float
    trees: int = 80
    leaves: int = 8
    rate: float = 0.1
    least: int = 10
    """Samples in a leaf."""


GROWTHS = (TreeSettings(0.85), TreeSettings(0.95))
"""What is tried, beside no trees at all."""


@dataclass(frozen=True, slots=True)
class TrainingKernels:
    """Kernels of one family with what was measured."""

    kernels: FeatureBatch
    latency_us: Numbers
    weight: Numbers

    def take(self, rows: NDArray[np.intp]) -> TrainingKernels:
        """Return the chosen rows."""
        return TrainingKernels(self.kernels.take(rows), self.latency_us[rows], self.weight[rows])


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
    if not samples:
        raise BadInput(f"0 samples, processor {processor}, needed is at least 1")
    for sample in samples:
        if (
            not sample.latencies_us
            or not np.isfinite(sample.latencies_us).all()
            or min(sample.latencies_us) <= 0
        ):
            raise BadInput(
                f"latencies {sample.latencies_us} us, kernel {sample.kernel.name}, needed are"
                " positive numbers"
            )
    weight = 1 / np.sqrt(NOISE**2 + np.array([sample.spread for sample in samples]) ** 2)
    kernels = feature_batch([sample.kernel for sample in samples], ELEMENT_BYTES[dtype])
    data = TrainingKernels(
        kernels, np.array([sample.latency_us for sample in samples]), weight / weight.max()
    )
    names = np.array([kernel_family(form) for form in data.kernels.forms])[data.kernels.form]
    families, wrong, time_us = {}, [], []
    for name, count in Counter(names.tolist()).most_common():
        rows = np.flatnonzero(names == name)
        grows = count >= MANY and bool(growths) and may_grow(name, count)
        families[name], residual = fit_family(data.take(rows), growths if grows else ())
        wrong.append(residual)
        time_us.append(data.latency_us[rows])
    everything = np.concatenate(wrong)
    lonely = [name for name, residual in zip(families, wrong, strict=True) if len(residual) < FOLDS]
    for name in lonely:  # too few to be left out one after the other
        families[name] = replace(
            families[name], spread=error_quantiles(2 * everything, everything, most=1)
        )
    return Learned(
        processor, dtype, families, root_mean_square(everything, np.concatenate(time_us))
    )


def fit_family(
    data: TrainingKernels, growths: Sequence[TreeSettings]
) -> tuple[KernelFamily, Numbers]:
    """Fit the model that is best on what is left out; return it and its log(measured / estimated)
    there.
    """
    tried: list[TreeSettings | None] = [None, *growths]
    residuals = [cross_validated_errors(data, growth) for growth in tried]
    errors = [float(np.mean(np.abs(residual))) for residual in residuals]
    best = int(np.argmin([errors[0] * BETTER, *errors[1:]]))
    full = fit_model(data, tried[best])
    return (
        replace(full, spread=error_quantiles(residuals[best], full.rate_model_us(data.kernels))),
        residuals[best],
    )


def cross_validated_errors(data: TrainingKernels, growth: TreeSettings | None) -> Numbers:
    """Return log(measured / estimated) of every sample by a model that never saw it."""
    residual, fold = np.zeros(len(data.latency_us)), assign_folds(data.latency_us)
    for part_number in range(fold.max() + 1):
        tested, trained = np.flatnonzero(fold == part_number), np.flatnonzero(fold != part_number)
        model = fit_model(data.take(trained if len(trained) else tested), growth)
        part = data.take(tested)
        residual[tested] = np.log(
            part.latency_us / model.latency_us(part.kernels, model.rate_model_us(part.kernels))
        )
    return residual


def assign_folds(size: Numbers) -> NDArray[np.intp]:
    """Assign samples to folds; neighbors in size go to different ones."""
    fold = np.empty(len(size), dtype=np.intp)
    deals = np.tile(np.arange(FOLDS), (-(-len(size) // FOLDS), 1))
    fold[np.argsort(size, kind="stable")] = (
        np.random.default_rng(0).permuted(deals, axis=1).reshape(-1)[: len(size)]
    )
    return fold


def fit_model(data: TrainingKernels, growth: TreeSettings | None) -> KernelFamily:
    """Fit the analytic part, then the trees on what it leaves."""
    forms = [data.kernels.forms[index] for index in data.kernels.form]
    ops, thens = (
        Counter(form[1] for form in forms),
        Counter(then for form in forms for then in form[2]),
    )
    analytic = KernelFamily(
        terms=fit_rates(terms_for(data), data),
        floor_us=float(data.latency_us.min() / 4),
        ops=tuple(op for op, _ in ops.most_common()),
        followers=tuple(sorted(thens)),
        macs=range_of(data.kernels.column("macs")),
        working_bytes=range_of(data.kernels.column("working_bytes")),
        ranges={name: range_of(data.kernels.column(name)) for name in RANGED},
        analytic_us=(1.0, 1.0),
        spread=ErrorQuantiles((0.0,), (0.0,), (0.0,), (0.0,)),
    )
    size = analytic.rate_model_us(data.kernels)
    return (
        grow_trees(replace(analytic, analytic_us=range_of(size)), data, size, growth)
        if growth
        else analytic
    )


def flags_of(data: TrainingKernels) -> dict[str, int]:
    """Return what tells kernels of one family apart, and how many samples have it."""
    forms = [data.kernels.forms[index] for index in data.kernels.form]
    counts = Counter(
        flag
        for form in forms
        for flag in (
            f"op:{form[1]}",
            *(f"then:{then}" for then in set(form[2])),
            f"layout:{form[4]}",
        )
    )
    return {
        flag: count
        for flag, count in sorted(counts.items())
        if count < len(forms) and not flag.endswith(":")
    }


def terms_for(data: TrainingKernels) -> list[RateTerm]:
    """Return the model's terms: the fewer the samples, the fewer the ways in which they can
    differ.
    """
    count = len(data.latency_us)
    terms = PLAIN if count < FEW else COMMON if count < SOME else WORK
    usable = [
        term
        for term in terms
        if not term.above or np.count_nonzero(term.amount(data.kernels)) >= BEYOND
    ]
    for flag, count_held in flags_of(data).items() if count >= FEW else ():
        columns = (
            ("one", "write_bytes")
            if flag.startswith("then:")
            else ("one", "write_bytes", "read_bytes", "taps", "cout")
        )
        usable += [
            RateTerm(column, 1, only=flag)
            for column in (columns if count_held >= FLAGGED else ("write_bytes",))
        ]
    return usable


def fit_rates(terms: Sequence[RateTerm], data: TrainingKernels) -> tuple[RateTerm, ...]:
    """Fit rates: least squares of log ratios with no negative rate, by a few rounds of weighted
    linear ones.

    Far outliers count less.
    """
    amounts = np.stack([term.amount(data.kernels) for term in terms], axis=1)
    unit = np.maximum(np.linalg.norm(amounts / data.latency_us[:, None], axis=0), 1e-300)
    base, weight, rates = data.latency_us, data.weight, np.zeros(len(terms))
    for _ in range(ROUNDS):
        rates, _ = nnls(
            amounts / unit * (weight / base)[:, None],
            weight * data.latency_us / base,
            maxiter=100 * len(terms),
        )
        estimate = np.maximum(amounts / unit @ rates, data.latency_us / 10)
        base = np.sqrt(estimate * data.latency_us)
        off = np.abs(np.log(estimate / data.latency_us))
        weight = data.weight * np.sqrt(OUTLIER / np.maximum(off, OUTLIER))
    return tuple(
        replace(term, us_per_unit=float(rate))
        for term, rate in zip(terms, rates / unit, strict=True)
        if rate > 0
    )


def grow_trees(
    family: KernelFamily, data: TrainingKernels, size: Numbers, growth: TreeSettings
) -> KernelFamily:
    """Return the family with boosted trees on what the roofline leaves."""
    columns = {name: data.kernels.column(name) for name in SEEN} | {
        name: data.kernels.flag(name)
        for name, count_held in flags_of(data).items()
        if count_held >= FLAGGED
    }
    inputs = tuple(name for name, values in columns.items() if values.min() < values.max())
    if not inputs:
        return family
    target = np.log(data.latency_us) - growth.power * np.log(size)
    trees = HistGradientBoostingRegressor(
        max_iter=growth.trees,
        max_leaf_nodes=growth.leaves,
        learning_rate=growth.rate,
        min_samples_leaf=growth.least,
        monotonic_cst=[int(name in GROWS) for name in inputs],
        early_stopping=False,
        random_state=0,
    )
    trees.fit(
        np.stack([columns[name] for name in inputs], axis=1), target, sample_weight=data.weight
    )
    return replace(family, power=growth.power, inputs=inputs, forest=convert_forest(trees))


def convert_forest(trees: HistGradientBoostingRegressor) -> Forest:
    """Return scikit-learn's forest as arrays that need no library."""
    return Forest(
        float(np.ravel(trees._baseline_prediction)[0]),
        tuple(convert_tree(predictor[0].nodes) for predictor in trees._predictors),
    )


def convert_tree(nodes: NDArray[np.void]) -> Tree:
    """Return a tree of scikit-learn as flat arrays."""
    leaf = nodes["is_leaf"].astype(bool)
    return Tree(
        tuple(np.where(leaf, -1, nodes["feature_idx"]).tolist()),
        tuple(np.where(leaf, 0.0, nodes["num_threshold"]).tolist()),
        tuple(np.where(leaf, 0, nodes["left"]).tolist()),
        tuple(np.where(leaf, 0, nodes["right"]).tolist()),
        tuple(np.where(leaf, nodes["value"], 0.0).tolist()),
    )


def error_quantiles(residual: Numbers, size: Numbers, most: int = 6) -> ErrorQuantiles:
    """Return quantiles of left-out errors, in classes of equally many sizes."""
    classes = max(1, min(most, len(size) // CLASS))
    edges = np.quantile(size, np.arange(1, classes) / classes)
    where = np.searchsorted(edges, size, side="right")
    parts = [residual[where == size_class] for size_class in range(classes)]
    low, high = zip(*(conformal_interval(part) for part in parts), strict=True)
    return ErrorQuantiles(
        (0.0, *edges.tolist()), low, high, tuple(root_mean_square(part) for part in parts)
    )


def conformal_interval(residual: Numbers) -> tuple[float, float]:
    """Return the conformal interval: of n + 1 kernels that could have come in any order, 90% lie
    between these ranks.
    """
    count = len(residual)
    rank = (count + 1) * (1 - COVERED) / 2
    low, high = np.interp((rank, count + 1 - rank), np.arange(1, count + 1), np.sort(residual))
    short = min(
        1.0, rank
    )  # fewer than 19 kernels cannot show their own 5%: reach beyond the worst of them
    return min(float(low), 0.0) / short, max(float(high), 0.0) / short


def root_mean_square(residual: Numbers, weight: Numbers | None = None) -> float:
    """Return the weighted root mean square of relative errors."""
    return float(np.sqrt(np.average(np.expm1(residual) ** 2, weights=weight)))


def range_of(values: Numbers) -> tuple[float, float]:
    """Return the least and the largest value."""
    return float(values.min()), float(values.max())
