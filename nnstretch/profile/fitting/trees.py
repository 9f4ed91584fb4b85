"""Boosted trees on what the rates leave: monotonic in size, kept as flat arrays."""

from __future__ import annotations

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
    trees = HistGradientBoostingRegressor(
        max_iter=growth.trees,
        max_leaf_nodes=growth.leaves,
        learning_rate=growth.rate,
        min_samples_leaf=growth.least,
        monotonic_cst=[int(name in GROWS) for name in columns],
        early_stopping=False,
        random_state=0,
    )
    target = np.log(data.latency_us) - growth.power * np.log(size)
    trees.fit(np.stack(list(columns.values()), axis=1), target, sample_weight=data.weight)
    return replace(family, power=growth.power, inputs=tuple(columns), forest=convert_forest(trees))


def tree_columns(data: TrainingKernels) -> dict[str, Numbers]:
    """Return what trees may look at, without what is the same in every sample."""
    columns = {name: data.kernels.column(name) for name in SEEN}
    for flag, samples in data.flags().items():
        if samples >= FLAGGED:
            columns[flag] = data.kernels.flag(flag)
    return {name: values for name, values in columns.items() if values.min() < values.max()}


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
