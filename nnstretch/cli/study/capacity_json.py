"""The contract's JSON of a study of capacity."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nnstretch.study.capacity.experiment import CapacityResult, CapacityRow


def as_json(study: CapacityResult) -> dict[str, Any]:
    """Return the study of capacity as JSON data."""
    from nnstretch.train.data import open_dataset

    wanted, bounds = study.request, study.bounds
    side = wanted.recipe.data.image_px
    dataset = open_dataset(wanted.recipe.data)
    return {
        "model": wanted.model,
        "recipe": asdict(wanted.recipe),
        "start": str(wanted.weights or "scratch"),
        "seeds": wanted.seeds,
        "original": network_json(study.original),
        "variants": [variant_json(study, row) for row in study.rows],
        "min_depth": bounds.depth,
        "min_width": bounds.width,
        "tolerance": wanted.tolerance * 100,
        "margin": study.margin * 100,
        "inside": bounds.supporting_variants,
        "search": (
            f"nnstretch search {shlex.quote(wanted.model)} --input 1,3,{side},{side} --soc SOC"
            f" --min-depth {bounds.depth:g} --min-width {bounds.width:g}"
        ),
        "images": len(dataset.held),
        "chance": 1 / len(dataset.classes),
        "reused": study.reused,
        "journal": str(study.journal),
    }


def network_json(row: CapacityRow) -> dict[str, Any]:
    """Return accuracy and size of a trained network as JSON data."""
    return {
        "accuracy": row.accuracy,
        "spread": row.spread,
        "macs": row.candidate.stretched.macs,
        "params": row.candidate.stretched.params,
        "epochs": row.epochs,
        "seconds": row.seconds,
        "accuracies": list(row.accuracies),
    }


def variant_json(study: CapacityResult, row: CapacityRow) -> dict[str, Any]:
    """Return a variant with its verdict as JSON data."""
    shape = row.candidate.shape
    assert shape is not None, "every variant has one; only the original does not"
    return {
        "depth": shape.depth,
        "width": shape.width,
        **network_json(row),
        "holds": study.is_accurate(row),
        "family": shape.family,
        "branches": [
            {"depth": share.depth, "width": share.width} for share in (shape.main, shape.second)
        ],
        "plan": row.candidate.key,
        "sequential": list(row.candidate.refusals),
    }
