"""`latency_predictors/NAME/` -> Soc: `soc.json` and one file per processor, read strictly.

An unknown key is refused as loudly as a missing one: a misspelt setting that is ignored costs days.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from nnstretch.errors import BrokenFile, UnknownName
from nnstretch.graph import ELEMENT_BYTES
from nnstretch.places import shipped
from nnstretch.predict.analytic import Analytic, Rates
from nnstretch.soc import Link, Processor, Soc

FORMAT = 1
SOC_KEYS = ("format", "name", "dtype", "calibrated", "provenance", "processors", "merge", "contention")
PROCESSOR_KEYS = ("name", "kind", "queue_depth", "asynchronous", "copy_in", "copy_out", "sync_us", "memory_bytes")
PREDICTOR_KEYS = ("format", "processor", "form", "dtype", "relative_error", "rates")
PROCESSOR_KINDS = ("cpu", "gpu", "dsp", "npu")
POSITIVE = ("dense_macs_per_us", "depthwise_macs_per_us", "bytes_per_us", "launch_us")


def known_socs() -> tuple[str, ...]:
    """Chips that ship with the package."""
    return tuple(sorted(path.parent.name for path in shipped("latency_predictors").glob("*/soc.json")))


def load_soc(name: str | Path) -> Soc:
    """A chip by name, or from a folder of the same form."""
    ours = shipped("latency_predictors") / str(name)
    folder = ours if str(name) in known_socs() or not Path(name).is_dir() else Path(name)
    if not (folder / "soc.json").is_file():
        known = ", ".join(known_socs()) or "none"
        raise UnknownName(f"unknown SoC {str(name)!r}, no soc.json in {folder}, known are {known}, or name a folder")
    where = str(folder / "soc.json")
    data = read_json(folder / "soc.json", SOC_KEYS)
    processors = tuple(processor(item, f"{where} processors[{i}]") for i, item in enumerate(items(data, "processors", where)))
    names = [one.name for one in processors]
    if not names or len(set(names)) != len(names):
        raise BrokenFile(f"processors are {names}, {where}, needed is at least 1, each named once")
    dtype = choice(data, "dtype", tuple(ELEMENT_BYTES), where)
    return Soc(
        name=text(data, "name", where),
        processors=processors,
        dtype=dtype,
        predictors={one.name: load_predictor(folder / f"{one.name}.json", one.name, dtype) for one in processors},
        merge=link(data, "merge", where),
        contention=dict(contention(item, names, f"{where} contention[{i}]") for i, item in enumerate(items(data, "contention", where))),
        calibrated=flag(data, "calibrated", where),
        provenance=text(data, "provenance", where),
    )


def load_predictor(path: Path, expected: str, dtype: str) -> Analytic:
    data = read_json(path, PREDICTOR_KEYS)
    if data["processor"] != expected or data["dtype"] != dtype:
        raise BrokenFile(f"processor {data['processor']!r} with {data['dtype']!r}, {path}, the chip expects {expected!r} with {dtype!r}")
    choice(data, "form", ("analytic",), str(path))
    where = f"{path} rates"
    names = tuple(field.name for field in fields(Rates))
    rates = keyed(data["rates"], names, where)
    values = {name: number(rates, name, where, 1e-9 if name in POSITIVE else 0.0) for name in names}
    return Analytic(expected, dtype, Rates(**values), number(data, "relative_error", str(path)))


def processor(data: Any, where: str) -> Processor:
    data = keyed(data, PROCESSOR_KEYS, where)
    memory = data["memory_bytes"]
    return Processor(
        name=text(data, "name", where),
        kind=choice(data, "kind", PROCESSOR_KINDS, where),
        queue_depth=int(number(data, "queue_depth", where, 1)),
        copy_in=link(data, "copy_in", where),
        copy_out=link(data, "copy_out", where),
        sync_us=number(data, "sync_us", where),
        asynchronous=flag(data, "asynchronous", where),
        memory_bytes=None if memory is None else int(number(data, "memory_bytes", where, 1)),
    )


def contention(data: Any, names: list[str], where: str) -> tuple[frozenset[str], float]:
    data = keyed(data, ("processors", "factor"), where)
    together = items(data, "processors", where)
    if len(together) < 2 or not set(together) <= set(names):
        raise BrokenFile(f"processors are {together}, {where}, needed are at least 2 of {names}")
    return frozenset(together), number(data, "factor", where, 1.0)


def link(data: Mapping[str, Any], key: str, where: str) -> Link:
    where = f"{where} {key}"
    ends = keyed(data[key], ("fixed_us", "us_per_kib"), where)
    return Link(number(ends, "fixed_us", where), number(ends, "us_per_kib", where))


def read_json(path: Path, names: tuple[str, ...]) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BrokenFile(f"file is missing, {path}, soc.json names this processor") from None
    except json.JSONDecodeError as error:
        raise BrokenFile(f"not JSON, {path} line {error.lineno} column {error.colno}, {error.msg}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BrokenFile(f"cannot be read, {path}, {error}") from None
    data = keyed(data, names, str(path))
    if data["format"] != FORMAT:
        raise BrokenFile(f"format {data['format']!r}, {path}, this version reads format {FORMAT}")
    return data


def keyed(data: Any, names: tuple[str, ...], where: str) -> dict[str, Any]:
    """An object with exactly these keys."""
    if not isinstance(data, dict):
        raise BrokenFile(f"a {type(data).__name__}, {where}, needed is an object with {', '.join(names)}")
    if missing := [name for name in names if name not in data]:
        raise BrokenFile(f"field {missing[0]!r} is missing, {where}, needed are {', '.join(names)}")
    if unknown := [name for name in data if name not in names]:
        raise BrokenFile(f"field {unknown[0]!r} is unknown, {where}, known are {', '.join(names)}")
    return data


def number(data: Mapping[str, Any], key: str, where: str, least: float = 0.0) -> float:
    value = data[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < least:
        raise BrokenFile(f"field {key!r} is {value!r}, {where}, needed is a number of at least {least:g}")
    return float(value)


def text(data: Mapping[str, Any], key: str, where: str) -> str:
    if not isinstance(data[key], str):
        raise BrokenFile(f"field {key!r} is {data[key]!r}, {where}, needed is text")
    return str(data[key])


def choice(data: Mapping[str, Any], key: str, allowed: tuple[str, ...], where: str) -> str:
    if data[key] not in allowed:
        raise BrokenFile(f"field {key!r} is {data[key]!r}, {where}, needed is one of {', '.join(allowed)}")
    return str(data[key])


def flag(data: Mapping[str, Any], key: str, where: str) -> bool:
    if not isinstance(data[key], bool):
        raise BrokenFile(f"field {key!r} is {data[key]!r}, {where}, needed is true or false")
    return bool(data[key])


def items(data: Mapping[str, Any], key: str, where: str) -> list[Any]:
    if not isinstance(data[key], list):
        raise BrokenFile(f"field {key!r} is {data[key]!r}, {where}, needed is a list")
    return list(data[key])
