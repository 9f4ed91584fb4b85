"""Boosted trees as plain numbers, evaluated for thousands of rows at once.

A tree of up to 16 leaves is a set of tests; each failed test rules out the leaves on one side of
it. For every feature the tests of all trees are sorted by threshold, so one binary search tells
which leaves of which trees survive; the first survivor is the leaf a walk from the root would reach
(QuickScorer, Lucchese et al. 2015).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from nnstretch.errors import BadInput
from nnstretch.files.limits import Length, Range
from nnstretch.predict.features import Numbers

LEAVES = 16
"""At most, in one tree."""
TREES = 1000
CHUNK = 1024
"""Rows whose surviving leaves stay in the near caches."""
FULL = np.uint16(0xFFFF)
STEEPEST = 300.0
"""Largest sum of a forest's values, a logarithm: beyond it latencies would overflow."""
NODES = Length(0, 2 * LEAVES - 1)
Indices = Annotated[tuple[Annotated[int, Range(-(1 << 53), 1 << 53)], ...], NODES]
NodeValues = Annotated[tuple[Annotated[float, Range(-1e300, 1e300)], ...], NODES]


@dataclass(frozen=True, slots=True)
class Tree:
    """Nodes as parallel lists, root first, children behind their parents."""

    feature: Indices
    """What a node tests, -1 for a leaf."""
    threshold: NodeValues
    """Left where the feature is at most this."""
    left: Indices
    right: Indices
    value: NodeValues
    """What a leaf adds."""

    def __post_init__(self) -> None:
        if fault := tree_defect(self):
            raise BadInput(fault)


@dataclass(frozen=True, slots=True)
class Forest:
    """The sum of its trees over a baseline."""

    baseline: Annotated[float, Range(-STEEPEST, STEEPEST)]
    trees: Annotated[tuple[Tree, ...], Length(0, TREES)]
    tables: BitvectorTables = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.trees) > TREES:
            raise BadInput(f"{len(self.trees)} trees, forest, needed are at most {TREES}")
        object.__setattr__(self, "tables", bitvector_tables(self.trees))

    @property
    def features(self) -> int:
        """Return how many columns its rows need at least."""
        return 1 + max((max(tree.feature) for tree in self.trees), default=-1)

    def predict(self, columns: Sequence[Numbers]) -> Numbers:
        """Predict one value a row; `columns` are the features, each an array over all rows."""
        count = len(columns[0]) if len(columns) else 0
        scores = np.empty(count)
        for start in range(0, count, CHUNK):
            rows = slice(start, min(start + CHUNK, count))
            scores[rows] = self.tables.scores([column[rows] for column in columns], self.baseline)
        return scores


@dataclass(frozen=True, slots=True, eq=False)
class BitvectorTables:
    """What `Forest.predict` looks up."""

    features: tuple[int, ...]
    thresholds: tuple[Numbers, ...]
    """Sorted, for each feature."""
    survivors: tuple[NDArray[np.uint16], ...]
    """For each feature: surviving leaves of each tree, by how many thresholds are below."""
    values: Numbers
    """Of the leaves, `LEAVES` a tree."""

    def scores(self, columns: Sequence[Numbers], baseline: float) -> Numbers:
        """Return the sum of all trees for each row."""
        count = len(columns[0])
        trees = len(self.values) // LEAVES
        alive = np.full((count, trees), FULL)
        tables = zip(self.features, self.thresholds, self.survivors, strict=True)
        for feature, thresholds, survivors in tables:
            below = np.searchsorted(thresholds, columns[feature], side="left")
            alive &= survivors.take(below, axis=0)
        leaves = FIRST.take(alive) + np.arange(trees, dtype=np.int32) * LEAVES
        terms = np.empty((count, trees + 1))
        terms[:, 0] = baseline
        self.values.take(leaves, out=terms[:, 1:], mode="clip")
        # One after the other, as the library that grew the trees sums them.
        return np.asarray(np.cumsum(terms, axis=1)[:, -1])


FIRST = np.array(
    [LEAVES - 1, *((mask & -mask).bit_length() - 1 for mask in range(1, 1 << LEAVES))],
    dtype=np.int32,
)
"""Lowest set bit of every 16-bit mask."""


def tree_defect(tree: Tree) -> str | None:
    """Return why the lists are no tree, in which a walk can neither loop nor leave, or None."""
    size = len(tree.feature)
    lists = (tree.feature, tree.threshold, tree.left, tree.right, tree.value)
    sizes = [len(values) for values in lists]
    if not size or set(sizes) != {size}:
        return f"lists of {', '.join(map(str, sizes))} nodes, tree, needed is one length"
    inner = [node for node in range(size) if tree.feature[node] >= 0]
    if size - len(inner) > LEAVES:
        return f"{size - len(inner)} leaves, tree, needed are at most {LEAVES}"
    children = [*map(tree.left.__getitem__, inner), *map(tree.right.__getitem__, inner)]
    if sorted(children) != list(range(1, size)):
        return (
            f"children {children[:8]}, tree of {size} nodes, each node but the first needs one"
            " parent"
        )
    for node in inner:
        if (child := min(tree.left[node], tree.right[node])) <= node:
            return f"node {node} has child {child}, tree, children follow their parents"
    if not np.isfinite([*tree.threshold, *tree.value]).all():
        return "a number that is not finite, tree, thresholds and values must be"
    return None


def bitvector_tables(trees: Sequence[Tree]) -> BitvectorTables:
    """Return the tables that evaluate trees by bit vectors."""
    tests: dict[int, list[tuple[float, int, int]]] = {}
    values = np.zeros(len(trees) * LEAVES)
    for number, tree in enumerate(trees):
        leaves = leaves_below(tree)
        for position, leaf in enumerate(leaves[0]):
            values[number * LEAVES + position] = tree.value[leaf]
        for node, feature in enumerate(tree.feature):
            if feature >= 0:
                gone = sum(1 << leaves[0].index(leaf) for leaf in leaves[tree.left[node]])
                tests.setdefault(feature, []).append((tree.threshold[node], number, gone))
    thresholds: list[Numbers] = []
    survivors: list[NDArray[np.uint16]] = []
    for _, feature_tests in sorted(tests.items()):
        thresholds.append(np.array(sorted({threshold for threshold, _, _ in feature_tests})))
        survivors.append(surviving_leaves(feature_tests, thresholds[-1], len(trees)))
    return BitvectorTables(tuple(sorted(tests)), tuple(thresholds), tuple(survivors), values)


def leaves_below(tree: Tree) -> list[list[int]]:
    """Return leaves below every node, from left to right."""
    below: list[list[int]] = [[] for _ in tree.feature]
    for node in reversed(range(len(tree.feature))):
        is_leaf = tree.feature[node] < 0
        children = [] if is_leaf else [tree.left[node], tree.right[node]]
        below[node] = [node] if is_leaf else below[children[0]] + below[children[1]]
    return below


def surviving_leaves(
    tests: Sequence[tuple[float, int, int]], thresholds: Numbers, trees: int
) -> NDArray[np.uint16]:
    """Return row i: what survives where exactly i thresholds are below the value."""
    masks = np.full((len(thresholds) + 1, trees), FULL)
    for threshold, tree, gone in tests:
        masks[int(np.searchsorted(thresholds, threshold)) + 1 :, tree] &= FULL ^ np.uint16(gone)
    return masks
