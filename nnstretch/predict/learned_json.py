"""A `Learned` predictor as JSON and back, to the last bit.

A file is read as if somebody hostile had written it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from nnstretch.errors import BadInput, BrokenFile
from nnstretch.predict.boosted_trees import LEAVES, TREES, Forest, Tree
from nnstretch.predict.features import COLUMNS
from nnstretch.predict.json_fields import (
    integers,
    items,
    number,
    numbers,
    require_keys,
    shorten,
    string,
    strings,
)
from nnstretch.predict.learned import ErrorQuantiles, KernelFamily, Learned, RateTerm

FAMILY_KEYS = (
    "terms",
    "floor_us",
    "ops",
    "followers",
    "macs",
    "working_bytes",
    "analytic_us",
    "spread",
    "power",
    "inputs",
    "forest",
)
FAMILIES, TERMS, CLASSES = 200, 500, 100
"""How many a file may hold."""
NODES = 2 * LEAVES - 1
STEEPEST = 300.0
"""Largest sum of a forest's values, a logarithm: beyond it latencies would overflow."""
FASTEST, SLOWEST = 1e-9, 1e12
"""Microseconds that a latency or a rate may have."""
FLAGS = ("op", "then", "layout")


def model_document(learned: Learned) -> dict[str, Any]:
    """Return a learned predictor as JSON data."""
    return {
        "families": {
            name: family_document(family) for name, family in sorted(learned.families.items())
        }
    }


def family_document(family: KernelFamily) -> dict[str, Any]:
    """Return a kernel family as JSON data."""
    terms = [asdict(term) for term in family.terms]
    forest = family.forest and {
        "baseline": family.forest.baseline,
        "trees": [asdict(tree) for tree in family.forest.trees],
    }
    plain = {name: getattr(family, name) for name in FAMILY_KEYS}
    return plain | {"terms": terms, "spread": asdict(family.spread), "forest": forest}


def parse_learned(
    data: Any, processor: str, dtype: str, relative_error: float, where: str
) -> Learned:
    """Parse a predictor. Raises BrokenFile."""
    families = require_keys(data, ("families",), where)["families"]
    if not isinstance(families, Mapping) or not 0 < len(families) <= FAMILIES:
        raise BrokenFile(
            f"field 'families' is {shorten(families)}, {where}, needed is an object with 1 to"
            f" {FAMILIES} families"
        )
    return Learned(
        processor,
        dtype,
        {
            name: parse_family(family, f"{where} {shorten(name)}")
            for name, family in families.items()
        },
        relative_error,
    )


def parse_family(data: Any, where: str) -> KernelFamily:
    """Parse a kernel family. Raises BrokenFile."""
    data = require_keys(data, FAMILY_KEYS, where)
    inputs, ops = strings(data, "inputs", where), strings(data, "ops", where)
    if odd := [name for name in inputs if name not in COLUMNS and not is_flag(name)]:
        raise BrokenFile(
            f"field 'inputs' holds {shorten(odd[0])}, {where}, needed are columns or flags"
        )
    if not ops:
        raise BrokenFile(f"field 'ops' is empty, {where}, needed is at least 1 operator")
    return KernelFamily(
        terms=tuple(
            parse_term(entry, f"{where} terms[{i}]")
            for i, entry in enumerate(items(data, "terms", where, TERMS))
        ),
        floor_us=number(data, "floor_us", where, FASTEST, SLOWEST),
        ops=ops,
        followers=strings(data, "followers", where),
        macs=parse_range(data, "macs", where),
        working_bytes=parse_range(data, "working_bytes", where),
        analytic_us=parse_range(data, "analytic_us", where, FASTEST),
        spread=parse_error_quantiles(data["spread"], f"{where} spread"),
        power=number(data, "power", where, 0.0, 1.0),
        inputs=inputs,
        forest=(
            None
            if data["forest"] is None
            else parse_forest(data["forest"], len(inputs), f"{where} forest")
        ),
    )


def parse_term(data: Any, where: str) -> RateTerm:
    """Parse a rate term. Raises BrokenFile."""
    data = require_keys(data, ("column", "us_per_unit", "above", "only"), where)
    column, only = string(data, "column", where), string(data, "only", where)
    if column not in COLUMNS:
        raise BrokenFile(
            f"field 'column' is {shorten(column)}, {where}, known are {', '.join(COLUMNS)}"
        )
    if only and not is_flag(only):
        raise BrokenFile(
            f"field 'only' is {shorten(only)}, {where}, needed is nothing or one of"
            f" {', '.join(FLAGS)} and a name"
        )
    return RateTerm(
        column, number(data, "us_per_unit", where, 0.0, SLOWEST), number(data, "above", where), only
    )


def is_flag(name: str) -> bool:
    """Return whether a name is a flag such as `op:NAME`."""
    what, colon, value = name.partition(":")
    return what in FLAGS and bool(colon and value)


def parse_range(
    data: Mapping[str, Any], key: str, where: str, least: float = 0.0
) -> tuple[float, float]:
    """Parse a range. Raises BrokenFile."""
    ends = numbers(data, key, where, 2, least)
    if len(ends) != 2 or ends[0] > ends[1]:
        raise BrokenFile(
            f"field {key!r} is {shorten(data[key])}, {where}, needed are the least and the most"
        )
    return ends[0], ends[1]


def parse_error_quantiles(data: Any, where: str) -> ErrorQuantiles:
    """Parse error quantiles. Raises BrokenFile."""
    names = ("above_us", "low", "high", "error")
    data = require_keys(data, names, where)
    above, low, high, error = (numbers(data, name, where, CLASSES) for name in names)
    if not len(above) == len(low) == len(high) == len(error) > 0:
        raise BrokenFile(
            f"{len(above)}, {len(low)}, {len(high)} and {len(error)} classes, {where}, needed is"
            " one number, at least 1"
        )
    if above[0] != 0 or any(lower > upper for lower, upper in pairwise(above)):
        raise BrokenFile(
            f"field 'above_us' is {shorten(above)}, {where}, needed are rising numbers from 0"
        )
    if (
        max(low) > 0
        or min(high) < 0
        or min(low) < -STEEPEST / 10
        or max(high) > STEEPEST / 10
        or min(error) < 0
    ):
        raise BrokenFile(
            f"low {shorten(low)}, high {shorten(high)}, {where}, needed is low <= 0 <= high, error"
            f" >= 0, within {STEEPEST / 10:g}"
        )
    return ErrorQuantiles(above, low, high, error)


def parse_forest(data: Any, inputs: int, where: str) -> Forest:
    """Parse a forest. Raises BrokenFile."""
    data = require_keys(data, ("baseline", "trees"), where)
    trees = tuple(
        parse_tree(entry, f"{where} trees[{i}]")
        for i, entry in enumerate(items(data, "trees", where, TREES))
    )
    forest = Forest(number(data, "baseline", where, -STEEPEST, STEEPEST), trees)
    if forest.features > inputs:
        raise BrokenFile(
            f"trees test feature {forest.features - 1}, {where}, the family has {inputs} inputs"
        )
    steepest = math.fsum(max(map(abs, tree.value)) for tree in trees)
    if steepest > STEEPEST:
        raise BrokenFile(f"values add up to {steepest:g}, {where}, needed is at most {STEEPEST:g}")
    return forest


def parse_tree(data: Any, where: str) -> Tree:
    """Parse a tree. Raises BrokenFile."""
    data = require_keys(data, ("feature", "threshold", "left", "right", "value"), where)
    feature, lower, right = (
        integers(data, key, where, NODES) for key in ("feature", "left", "right")
    )
    try:
        return Tree(
            feature,
            numbers(data, "threshold", where, NODES),
            lower,
            right,
            numbers(data, "value", where, NODES),
        )
    except BadInput as error:
        raise BrokenFile(f"{error}, {where}") from None
