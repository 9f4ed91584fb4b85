"""A chip -> the JSON files that `load_soc` reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nnstretch.files import write_text
from nnstretch.predict.analytic import Analytic, Rates
from nnstretch.soc import Link, Soc

RATES = tuple(Rates.__dataclass_fields__)


def write_soc(soc: Soc, out: Path) -> None:
    """`soc.json` and one file per processor; every predictor must be analytic."""
    out.mkdir(parents=True, exist_ok=True)
    for name, predictor in soc.predictors.items():
        assert isinstance(predictor, Analytic)
        data = {"format": 1, "processor": name, "form": "analytic", "dtype": soc.dtype, "relative_error": predictor.relative_error}
        write_json(out / f"{name}.json", data | {"rates": {key: getattr(predictor.rates, key) for key in RATES}})
    processors = [
        {"name": p.name, "kind": p.kind, "queue_depth": p.queue_depth, "asynchronous": p.asynchronous, "copy_in": link(p.copy_in)}
        | {"copy_out": link(p.copy_out), "sync_us": p.sync_us, "memory_bytes": p.memory_bytes}
        for p in soc.processors
    ]
    together = [{"processors": sorted(names), "factor": factor} for names, factor in soc.contention.items()]
    head = {"format": 1, "name": soc.name, "dtype": soc.dtype, "calibrated": soc.calibrated, "provenance": soc.provenance}
    write_json(out / "soc.json", head | {"processors": processors, "merge": link(soc.merge), "contention": together})


def link(value: Link) -> dict[str, float]:
    return {"fixed_us": value.fixed_us, "us_per_kib": value.us_per_kib}


def write_json(path: Path, data: Any) -> None:
    write_text(path, json.dumps(data, indent=2) + "\n")
