"""A `Learned` predictor as JSON and back, to the last bit.

A file is read as if somebody hostile had written it.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Annotated, Any

from nnstretch.files.decode import decode
from nnstretch.files.limits import Length, OneOf, shorten
from nnstretch.predict.boosted_trees import STEEPEST, Forest
from nnstretch.predict.fusion_rules_json import NamedOrRow
from nnstretch.predict.kernel_family import ErrorQuantiles, KernelFamily
from nnstretch.predict.learned import Learned
from nnstretch.predict.predictor_file import FileUnits
from nnstretch.predict.sampled_range import RelativeError


@dataclass(frozen=True, slots=True)
class LearnedModel:
    """Families of kernels by name."""

    families: Annotated[dict[str, KernelFamily], Length(1, 200)]


@dataclass(frozen=True, slots=True)
class LearnedFile:
    """A file with a learned predictor."""

    format: int
    processor: str
    form: Annotated[str, OneOf(("learned",))]
    dtype: str
    unit: FileUnits
    relative_error: RelativeError
    fusion: NamedOrRow
    model: LearnedModel
    noisy: Annotated[str, Length(0, 1000)] = ""
    """Why the measurements are noisy; empty where they are not."""


def model_document(learned: Learned) -> dict[str, Any]:
    """Return a learned predictor as JSON data."""
    rows = {name: family_document(family) for name, family in sorted(learned.families.items())}
    return {"families": rows}


def family_document(family: KernelFamily) -> dict[str, Any]:
    """Return a kernel family as JSON data."""
    plain = {field.name: getattr(family, field.name) for field in fields(KernelFamily)}
    terms = [asdict(term) for term in family.terms]
    forest = family.forest and {
        "baseline": family.forest.baseline,
        "trees": [asdict(tree) for tree in family.forest.trees],
    }
    return plain | {"terms": terms, "spread": asdict(family.spread), "forest": forest}


def decode_learned(data: Any) -> LearnedFile:
    """Decode the file of a learned predictor. Raises ValueError."""
    file: LearnedFile = decode(LearnedFile, data, "predictor")
    for name, family in file.model.families.items():
        where = f"predictor.model.families.{name[:40]}"
        check_error_quantiles(family.spread, f"{where}.spread")
        if family.forest is not None:
            check_forest(family.forest, len(family.inputs), f"{where}.forest")
    return file


def check_error_quantiles(spread: ErrorQuantiles, where: str) -> None:
    """Raise ValueError unless each class of sizes has its numbers, and they are possible."""
    lengths = [len(values) for values in asdict(spread).values()]
    if len(set(lengths)) > 1:
        raise ValueError(f"{where}, {lengths} classes, needed is one number")
    above = spread.above_us
    if above[0] != 0 or any(lower > upper for lower, upper in pairwise(above)):
        raise ValueError(f"{where}.above_us, {shorten(above)}, needed are rising numbers from 0")


def check_forest(forest: Forest, inputs: int, where: str) -> None:
    """Raise ValueError for trees that test features out of reach or whose values overflow."""
    if forest.features > inputs:
        raise ValueError(
            f"{where}, trees test feature {forest.features - 1}, the family has {inputs} inputs"
        )
    steepest = math.fsum(max(map(abs, tree.value)) for tree in forest.trees)
    if steepest > STEEPEST:
        raise ValueError(f"{where}, values add up to {steepest:g}, needed is at most {STEEPEST:g}")
