"""Boosted trees on what the rates leave: monotonic in size, kept as flat arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor  # type: ignore[import-untyped]

from nnstretch.predict.boosted_trees import Forest, Tree
from nnstretch.predict.features import GROWS, Numbers
from nnstretch.predict.kernel_family import KernelFamily
from nnstretch.profile.fitting.rate_model import FLAGGED
from nnstretch.profile.fitting.training_kernels import TrainingKernels

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
"""Features of the trees."""


@dataclass(frozen=True, slots=True)
class TreeSettings:
    """How the trees grow, and how much they are left to explain."""

    power: float
    trees: int = 80
    leaves: int = 8
    rate: float = 0.1
    least: int = 10
    """Samples in a leaf."""


BINS = 255
"""Values of a feature that trees tell apart, as many as scikit-learn has."""
GROWTHS = (TreeSettings(0.85), TreeSettings(0.95))
"""What is tried, beside no trees at all."""


def grow_trees(
    family: KernelFamily, data: TrainingKernels, size: Numbers, growth: TreeSettings
) -> KernelFamily:
    """Return the family with boosted trees on what its rates leave.

    `size` is what the rates alone say of each kernel, in us.
    """
    columns = tree_columns(data)
    if not columns:
        return family
    target = np.log(data.latency_us) - growth.power * np.log(size)
    rises = [int(name in GROWS) for name in columns]
    forest = grow_forest(list(columns.values()), target, data.weight, growth, rises)
    return replace(family, power=growth.power, inputs=tuple(columns), forest=forest)


def grow_forest(
    columns: Sequence[Numbers],
    target: Numbers,
    weight: Numbers,
    growth: TreeSettings,
    rises: Sequence[int],
) -> Forest:
    """Return the boosted trees of scikit-learn over some features; 1 in `rises` where they rise."""
    trees = HistGradientBoostingRegressor(
        max_iter=growth.trees,
        max_leaf_nodes=growth.leaves,
        learning_rate=growth.rate,
        min_samples_leaf=growth.least,
        monotonic_cst=list(rises),
        early_stopping=False,
        random_state=0,
    )
    edges = [bin_edges(values, weight) for values in columns]
    bins = [np.searchsorted(e, values) for e, values in zip(edges, columns, strict=True)]
    trees.fit(np.stack(bins, axis=1), target, sample_weight=weight)
    return convert_forest(trees, edges)


def tree_columns(data: TrainingKernels) -> dict[str, Numbers]:
    """Return what trees may look at, without what is the same in every sample."""
    columns = {name: data.kernels.column(name) for name in SEEN}
    for flag, samples in data.flags().items():
        if samples >= FLAGGED:
            columns[flag] = data.kernels.flag(flag)
    return {name: values for name, values in columns.items() if values.min() < values.max()}


def bin_edges(values: Numbers, weight: Numbers) -> Numbers:
    """Return what separates the bins of a feature, each value below or equal to its bin's.

    Between neighbours, or where there are too many, at quantiles of equal weight. They are
    scikit-learn's own, which finds them one by one: most of the time that small forests take.
    """
    distinct = np.unique(values)
    if len(distinct) <= BINS:
        return np.asarray((distinct[:-1] + distinct[1:]) / 2)
    order = np.argsort(values)
    total = np.cumsum(weight[order])
    shares = np.linspace(0, 1, BINS + 1)[1:-1] * total[-1]
    ordered, last = values[order], len(order) - 1
    below = ordered[np.minimum(np.searchsorted(total, shares), last)]
    above = ordered[np.minimum(np.searchsorted(total, shares, side="right"), last)]
    return np.unique((below + above) / 2)


def convert_forest(trees: HistGradientBoostingRegressor, edges: Sequence[Numbers]) -> Forest:
    """Return scikit-learn's forest over bins as arrays that need no library."""
    return Forest(
        float(np.ravel(trees._baseline_prediction)[0]),
        tuple(convert_tree(predictor[0].nodes, edges) for predictor in trees._predictors),
    )


def convert_tree(nodes: NDArray[np.void], edges: Sequence[Numbers]) -> Tree:
    """Return a tree of scikit-learn over bins as flat arrays over what they hold."""
    leaf = nodes["is_leaf"].astype(bool)
    splits = zip(leaf, nodes["feature_idx"], nodes["num_threshold"], strict=True)
    return Tree(
        tuple(np.where(leaf, -1, nodes["feature_idx"]).tolist()),
        tuple(0.0 if ends else float(edges[column][int(bin)]) for ends, column, bin in splits),
        tuple(np.where(leaf, 0, nodes["left"]).tolist()),
        tuple(np.where(leaf, 0, nodes["right"]).tolist()),
        tuple(np.where(leaf, nodes["value"], 0.0).tolist()),
    )
