"""Measured kernels -> a `Learned` predictor: non-negative rates, boosted trees that only rise with size, intervals from left-out kernels.

Deterministic: folds are dealt by rank of size, and the trees grow from a fixed seed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls  # type: ignore[import-untyped]
from sklearn.ensemble import HistGradientBoostingRegressor  # type: ignore[import-untyped]

from nnstretch.errors import BadInput
from nnstretch.graph import ELEMENT_BYTES
from nnstretch.predict.features import GROWS, Batch, Numbers, batch
from nnstretch.predict.learned import Family, Learned, Spread, Term, family_of
from nnstretch.predict.trees import Forest, Tree
from nnstretch.protocols import Kernel

MIB = 2.0**20
FOLDS = 5
NOISE = 0.04
"""Relative spread below which one measurement counts no more than another."""
ROUNDS = 5
OUTLIER = 0.2
"""Error from which a sample's weight falls."""
FEW = 60
"""Samples below which a family has no trees."""
CLASS = 40
"""Samples that one class of sizes needs for an interval of its own."""
COVERED = 0.9

WORK = (
    Term("one", 1), Term("macs", 1), Term("padded_macs", 1), Term("row_macs", 1), Term("windows", 1), Term("patches", 1),
    Term("read_bytes", 1), Term("write_bytes", 1), Term("weight_bytes", 1), Term("groups", 1), Term("taps", 1), Term("inputs", 1),
    Term("rows", 1), Term("cout", 1), Term("tile_macs", 1), Term("step_macs", 1), Term("read_sweeps", 1), Term("write_sweeps", 1),
    Term("weight_sweeps", 1), Term("lines", 1), Term("calls", 1), Term("block_writes", 1), Term("block_taps", 1), Term("step_taps", 1),
    Term("working_bytes", 1, MIB), Term("working_bytes", 1, 4 * MIB), Term("working_bytes", 1, 16 * MIB),
    Term("weight_bytes", 1, MIB / 2), Term("weight_bytes", 1, 2 * MIB),
    Term("moved_bytes", 1, MIB / 4), Term("moved_bytes", 1, MIB),
)  # fmt: skip
"""Ways in which work may take time; the fit drops what does not."""
PLAIN = (Term("one", 1), Term("moved_bytes", 1), Term("macs", 1))
"""For families of few samples."""
SEEN = (
    "cin", "cout", "hw_in", "hw_out", "kernel", "stride", "groups", "batch", "macs", "padded_macs", "windows", "patches", "taps", "inputs",
    "read_bytes", "write_bytes", "weight_bytes", "working_bytes", "cin_per_group", "cout_per_group", "rows", "reduction", "partial",
)  # fmt: skip
"""What the trees may look at."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured kernel."""

    kernel: Kernel
    latencies_us: tuple[float, ...]
    """One a round."""

    @property
    def latency_us(self) -> float:
        """Mean of the faster half: a quiet machine, but not its luckiest moment, and finer than the clock's ticks."""
        fastest = sorted(self.latencies_us)[: (len(self.latencies_us) + 1) // 2]
        return float(np.mean(fastest))

    @property
    def spread(self) -> float:
        """Between the quartiles, as a share of the latency."""
        low, high = np.percentile(self.latencies_us, (25, 75))
        return float(high / low - 1)


@dataclass(frozen=True, slots=True)
class Growth:
    """How the trees grow, and how much they are left to explain."""

    power: float = 0.6
    trees: int = 150
    leaves: int = 8
    rate: float = 0.1
    least: int = 5
    """Samples in a leaf."""


@dataclass(frozen=True, slots=True)
class Data:
    """Kernels of one family with what was measured."""

    kernels: Batch
    latency_us: Numbers
    weight: Numbers

    def take(self, rows: NDArray[np.intp]) -> Data:
        return Data(self.kernels.take(rows), self.latency_us[rows], self.weight[rows])


def fit(samples: Sequence[Sample], processor: str, dtype: str, growth: Growth = Growth()) -> Learned:  # noqa: B008
    """Seconds for thousands of samples. Raises BadInput where there is none, or one that took no time."""
    if not samples:
        raise BadInput(f"0 samples, processor {processor}, needed is at least 1")
    latency = np.array([sample.latency_us for sample in samples])
    if not (np.isfinite(latency) & (latency > 0)).all():
        odd = samples[int(np.argmin(np.isfinite(latency) & (latency > 0)))]
        raise BadInput(f"latency {odd.latency_us} us, kernel {odd.kernel.name}, needed is a positive number")
    weight = 1 / np.sqrt(NOISE**2 + np.array([sample.spread for sample in samples]) ** 2)
    data = Data(batch([sample.kernel for sample in samples], ELEMENT_BYTES[dtype]), latency, weight / weight.max())
    names = np.array([family_of(form) for form in data.kernels.forms])[data.kernels.form]
    found, wrong = {}, []
    for name in sorted(set(names)):
        part = data.take(np.flatnonzero(names == name))
        found[name], residual = family(part, growth)
        wrong.append(residual)
    return Learned(processor, dtype, found, rms(np.concatenate(wrong)))


def family(data: Data, growth: Growth) -> tuple[Family, Numbers]:
    """One model, and log(measured / estimated) of every sample when it was left out."""
    growth = replace(growth, trees=0) if len(data.latency_us) < FEW else growth
    full = model(data, growth)
    residual, size = np.empty(len(data.latency_us)), full.analytic(data.kernels)
    fold = folds(size)
    for one in range(fold.max() + 1):
        rest, left = data.take(np.flatnonzero(fold != one)), np.flatnonzero(fold == one)
        partial = model(rest, growth) if len(rest.latency_us) else full
        residual[left] = np.log(data.latency_us[left] / estimated(partial, data.take(left)))
    return replace(full, spread=spread_of(residual, size)), residual


def folds(size: Numbers) -> NDArray[np.intp]:
    """Neighbours in size go to different folds."""
    fold = np.empty(len(size), dtype=np.intp)
    fold[np.argsort(size, kind="stable")] = np.random.default_rng(0).permuted(
        np.resize(np.arange(FOLDS), (-(-len(size) // FOLDS), FOLDS)), axis=1
    ).reshape(-1)[: len(size)]
    return fold


def estimated(found: Family, data: Data) -> Numbers:
    return found.latency(data.kernels, found.analytic(data.kernels))


def model(data: Data, growth: Growth) -> Family:
    """The analytic part, then the trees on what it leaves."""
    ops = Counter(data.kernels.forms[i][1] for i in data.kernels.form)
    thens = sorted({then for i in np.unique(data.kernels.form) for then in data.kernels.forms[i][2]})
    layouts = sorted({data.kernels.forms[i][4] for i in np.unique(data.kernels.form)} - {""})
    flags = [*(f"op:{op}" for op in ops if len(ops) > 1), *(f"then:{then}" for then in thens), *(f"layout:{one}" for one in layouts)]
    extra = [Term(column, 1, only=flag) for flag in flags for column in ("one", "write_bytes")]
    extra += [Term(column, 1, only=flag) for flag in flags if not flag.startswith("then:") for column in ("read_bytes", "taps", "cout")]
    few = len(data.latency_us) < 20
    analytic = Family(
        terms=rates([*PLAIN, *extra] if few else [*WORK, *extra], data), floor_us=float(data.latency_us.min() / 4),
        ops=tuple(op for op, _ in ops.most_common()), followers=tuple(thens),
        macs=range_of(data.kernels.column("macs")), working_bytes=range_of(data.kernels.column("working_bytes")),
        analytic_us=(1.0, 1.0), spread=Spread((0.0,), (0.0,), (0.0,), (0.0,)),
    )  # fmt: skip
    size = analytic.analytic(data.kernels)
    analytic = replace(analytic, analytic_us=range_of(size))
    return grown(analytic, data, size, tuple(flags), growth) if growth.trees else analytic


def rates(terms: Sequence[Term], data: Data) -> tuple[Term, ...]:
    """Least squares of log ratios with no negative rate, by a few rounds of weighted linear ones; far outliers count less."""
    amounts = np.stack([term.amount(data.kernels) for term in terms], axis=1)
    unit = np.maximum(np.linalg.norm(amounts / data.latency_us[:, None], axis=0), 1e-300)
    base, weight, found = data.latency_us, data.weight, np.zeros(len(terms))
    for _ in range(ROUNDS):
        found, _ = nnls(amounts / unit * (weight / base)[:, None], weight * data.latency_us / base, maxiter=100 * len(terms))
        estimate = np.maximum(amounts / unit @ found, data.latency_us / 10)
        base = np.sqrt(estimate * data.latency_us)
        off = np.abs(np.log(estimate / data.latency_us))
        weight = data.weight * np.sqrt(OUTLIER / np.maximum(off, OUTLIER))
    return tuple(replace(term, us_per_unit=float(rate)) for term, rate in zip(terms, found / unit, strict=True) if rate > 0)


def grown(found: Family, data: Data, size: Numbers, flags: tuple[str, ...], growth: Growth) -> Family:
    columns = {name: data.kernels.column(name) for name in SEEN} | {name: data.kernels.flag(name) for name in flags}
    inputs = tuple(name for name, values in columns.items() if values.min() < values.max())
    if not inputs:
        return found
    target = np.log(data.latency_us) - growth.power * np.log(size)
    trees = HistGradientBoostingRegressor(
        max_iter=growth.trees, max_leaf_nodes=growth.leaves, learning_rate=growth.rate, min_samples_leaf=growth.least,
        monotonic_cst=[int(name in GROWS) for name in inputs], early_stopping=False, random_state=0,
    )  # fmt: skip
    trees.fit(np.stack([columns[name] for name in inputs], axis=1), target, sample_weight=data.weight)
    return replace(found, power=growth.power, inputs=inputs, forest=forest_of(trees))


def forest_of(trees: HistGradientBoostingRegressor) -> Forest:
    """The same numbers without the library."""
    return Forest(float(np.ravel(trees._baseline_prediction)[0]), tuple(tree_of(one[0].nodes) for one in trees._predictors))


def tree_of(nodes: NDArray[np.void]) -> Tree:
    leaf = nodes["is_leaf"].astype(bool)
    return Tree(
        tuple(np.where(leaf, -1, nodes["feature_idx"]).tolist()), tuple(np.where(leaf, 0.0, nodes["num_threshold"]).tolist()),
        tuple(np.where(leaf, 0, nodes["left"]).tolist()), tuple(np.where(leaf, 0, nodes["right"]).tolist()),
        tuple(np.where(leaf, nodes["value"], 0.0).tolist()),
    )  # fmt: skip


def spread_of(residual: Numbers, size: Numbers) -> Spread:
    """Quantiles of left-out errors, in classes of equally many sizes."""
    classes = max(1, min(6, len(size) // CLASS))
    edges = np.quantile(size, np.arange(1, classes) / classes)
    where = np.searchsorted(edges, size, side="right")
    parts = [residual[where == one] for one in range(classes)]
    low, high = zip(*(ends(part) for part in parts), strict=True)
    return Spread((0.0, *edges.tolist()), low, high, tuple(rms(part) for part in parts))


def ends(residual: Numbers) -> tuple[float, float]:
    """Conformal: of n + 1 kernels that could have come in any order, 90% lie between these ranks."""
    count = len(residual)
    rank = (count + 1) * (1 - COVERED) / 2
    low, high = np.interp((rank, count + 1 - rank), np.arange(1, count + 1), np.sort(residual))
    short = min(1.0, rank)
    return float(low) / short if low < 0 else float(low), float(high) / short if high > 0 else float(high)


def rms(residual: Numbers) -> float:
    return float(np.sqrt(np.mean(np.expm1(residual) ** 2)))


def range_of(values: Numbers) -> tuple[float, float]:
    return float(values.min()), float(values.max())


def by_family(learned: Learned, kernels: Sequence[Kernel]) -> dict[str, list[int]]:
    """Positions of kernels, by the family that prices them."""
    found: dict[str, list[int]] = defaultdict(list)
    everything = batch(kernels, ELEMENT_BYTES[learned.dtype])
    for position, index in enumerate(everything.form):
        found[family_of(everything.forms[index])].append(position)
    return dict(found)
