"""`latency_predictors/NAME/` -> Soc: `soc.json` and one file per processor, read strictly.

Predictor files of format 1 hold analytic predictors without units or fusion rules: microseconds,
bytes, and `MOBILE`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from nnstretch.errors import BrokenFile, UnknownName
from nnstretch.files.package_data import package_data
from nnstretch.graph import ELEMENT_BYTES
from nnstretch.kernel import MOBILE_FUSION, FusionRules
from nnstretch.predict.fusion_rules_json import parse_rules
from nnstretch.predict.json_fields import (
    choice,
    flag,
    items,
    number,
    read_json,
    require_format,
    require_keys,
    string,
)
from nnstretch.predict.roofline import Rates, Roofline
from nnstretch.predictor import Predictor
from nnstretch.soc import Link, Processor, Soc

SOC_FORMAT = 1
PREDICTOR_FORMAT = 2
UNIT = {"latency": "us", "size": "bytes"}
SOC_KEYS = (
    "format",
    "name",
    "dtype",
    "calibrated",
    "provenance",
    "processors",
    "merge",
    "contention",
)
PROCESSOR_KEYS = (
    "name",
    "kind",
    "queue_depth",
    "asynchronous",
    "copy_in",
    "copy_out",
    "sync_us",
    "memory_bytes",
    "power_w",
    "handover_us",
    "blocks_host",
    "copies_beside",
)
FIRST_KEYS = ("format", "processor", "form", "dtype", "relative_error", "rates")
PREDICTOR_KEYS = ("format", "processor", "form", "dtype", "unit", "relative_error", "fusion")
BODIES = {"analytic": "rates", "learned": "model"}
OPTIONAL: dict[str, Any] = {
    "power_w": None,
    "handover_us": 0.0,
    "blocks_host": False,
    "copies_beside": None,
}
"""What a processor need not say, and what it then is."""
PROCESSOR_KINDS = ("cpu", "gpu", "dsp", "npu")
POSITIVE = ("dense_macs_per_us", "depthwise_macs_per_us", "bytes_per_us", "launch_us")


def known_socs() -> tuple[str, ...]:
    """Return chips that ship with the package."""
    return tuple(
        sorted(path.parent.name for path in package_data("latency_predictors").glob("*/soc.json"))
    )


def load_soc(name: str | Path) -> Soc:
    """Load a chip by name, as shipped or under `latency_predictors/` of the working folder, or from
    any folder of the same form.

    Raises UnknownName when there is no such chip; BrokenFile when its files are wrong.
    """
    ours, local = (
        package_data("latency_predictors") / str(name),
        Path("latency_predictors") / str(name),
    )
    folder = ours
    if str(name) not in known_socs():
        folder = next((path for path in (Path(name), local) if path.is_dir()), ours)
    if not (folder / "soc.json").is_file():
        known = ", ".join(known_socs()) or "none"
        raise UnknownName(
            f"unknown SoC {str(name)!r}, no soc.json in {folder}, known are {known}, or name a"
            " folder"
        )
    where = str(folder / "soc.json")
    data = read_json(folder / "soc.json")
    require_format(data, folder / "soc.json", (SOC_FORMAT,))
    data = require_keys(data, SOC_KEYS, where)
    processors = tuple(
        parse_processor(item, f"{where} processors[{i}]")
        for i, item in enumerate(items(data, "processors", where))
    )
    names = [processor.name for processor in processors]
    if not names or len(set(names)) != len(names):
        raise BrokenFile(f"processors are {names}, {where}, needed is at least 1, each named once")
    dtype = choice(data, "dtype", tuple(ELEMENT_BYTES), where)
    loaded = {
        processor.name: load_predictor(folder / f"{processor.name}.json", processor.name, dtype)
        for processor in processors
    }
    return Soc(
        name=string(data, "name", where),
        processors=processors,
        dtype=dtype,
        predictors={processor: predictor for processor, (predictor, _) in loaded.items()},
        merge=parse_link(data, "merge", where),
        contention=dict(
            parse_contention(item, names, f"{where} contention[{i}]")
            for i, item in enumerate(items(data, "contention", where))
        ),
        calibrated=flag(data, "calibrated", where),
        provenance=string(data, "provenance", where),
        fusion={
            processor: rules for processor, (_, rules) in loaded.items() if rules != MOBILE_FUSION
        },
    )


def load_predictor(path: Path, expected: str, dtype: str) -> tuple[Predictor, FusionRules]:
    """Load one processor's predictor and what its backend fuses. Raises BrokenFile."""
    data, where = read_json(path), str(path)
    first = require_format(data, path, (1, PREDICTOR_FORMAT)) == 1
    form = (
        "analytic"
        if not isinstance(data, dict)
        else choice(require_keys_v1_or_v2(data, "form", where), "form", tuple(BODIES), where)
    )
    data = require_keys(data, FIRST_KEYS if first else (*PREDICTOR_KEYS, BODIES[form]), where)
    if data["processor"] != expected or data["dtype"] != dtype:
        raise BrokenFile(
            f"processor {data['processor']!r} with {data['dtype']!r}, {path}, the chip expects"
            f" {expected!r} with {dtype!r}"
        )
    if not first:
        check_unit(data["unit"], f"{where} unit")
    rules = MOBILE_FUSION if first else parse_rules(data["fusion"], where)
    error = number(data, "relative_error", where, 0.0)
    if form == "analytic":
        return Roofline(expected, dtype, parse_rates(data["rates"], f"{where} rates"), error), rules
    from nnstretch.predict.learned_json import (
        parse_learned,
    )  # numpy: only who has such a file needs it

    return parse_learned(data["model"], expected, dtype, error, f"{where} model"), rules


def require_keys_v1_or_v2(data: dict[str, Any], name: str, where: str) -> dict[str, Any]:
    """Refuse a predictor file without a needed key. Raises BrokenFile."""
    if name not in data:
        raise BrokenFile(
            f"field {name!r} is missing, {where}, needed are {', '.join(PREDICTOR_KEYS)}"
        )
    return data


def check_unit(data: Any, where: str) -> None:
    """Refuse another unit: nobody writes one on purpose."""
    for key, unit in UNIT.items():
        choice(require_keys(data, tuple(UNIT), where), key, (unit,), where)


def parse_rates(data: Any, where: str) -> Rates:
    """Parse the rates of a roofline. Raises BrokenFile."""
    names = tuple(field.name for field in fields(Rates))
    rates = require_keys(data, names, where)
    return Rates(
        **{name: number(rates, name, where, 1e-9 if name in POSITIVE else 0.0) for name in names}
    )


def parse_processor(data: Any, where: str) -> Processor:
    """Parse a processor. Raises BrokenFile."""
    data = require_keys(
        {**OPTIONAL, **data} if isinstance(data, dict) else data, PROCESSOR_KEYS, where
    )
    memory, power = data["memory_bytes"], data["power_w"]
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", string(data, "name", where)):
        raise BrokenFile(
            f"field 'name' is {data['name']!r}, {where}, needed are letters, digits, _, . and -: it"
            " names a file"
        )
    asynchronous, sync_us, handover_us = (
        flag(data, "asynchronous", where),
        number(data, "sync_us", where),
        number(data, "handover_us", where),
    )
    if asynchronous and (handover_us > sync_us or data["blocks_host"] is True):
        raise BrokenFile(
            f"asynchronous with handover_us {handover_us:g} of sync_us {sync_us:g} and blocks_host"
            f" {data['blocks_host']}, {where}, a queue does not block its host, and its"
            " synchronisation contains the hand-over"
        )
    return Processor(
        name=data["name"],
        kind=choice(data, "kind", PROCESSOR_KINDS, where),
        queue_depth=int(number(data, "queue_depth", where, 1)),
        copy_in=parse_link(data, "copy_in", where),
        copy_out=parse_link(data, "copy_out", where),
        sync_us=sync_us,
        asynchronous=asynchronous,
        memory_bytes=None if memory is None else int(number(data, "memory_bytes", where, 1)),
        power_w=None if power is None else number(data, "power_w", where),
        enqueue_us=handover_us,
        blocks_host=flag(data, "blocks_host", where),
        copies_overlap_compute=(
            None if data["copies_beside"] is None else flag(data, "copies_beside", where)
        ),
    )


def parse_contention(data: Any, names: list[str], where: str) -> tuple[frozenset[str], float]:
    """Parse a contention factor. Raises BrokenFile."""
    data = require_keys(data, ("processors", "factor"), where)
    together = items(data, "processors", where)
    if len(together) < 2 or any(name not in names for name in together):
        raise BrokenFile(f"processors are {together}, {where}, needed are at least 2 of {names}")
    return frozenset(together), number(data, "factor", where, 1.0)


def parse_link(data: Mapping[str, Any], key: str, where: str) -> Link:
    """Parse a link. Raises BrokenFile."""
    where = f"{where} {key}"
    ends = require_keys(data[key], ("fixed_us", "us_per_kib"), where)
    return Link(number(ends, "fixed_us", where), number(ends, "us_per_kib", where))
