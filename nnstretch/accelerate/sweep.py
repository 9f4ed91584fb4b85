"""`--sweep FIELD=A:B`: throughput against one field of the description, and the knee."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nnstretch.accelerate.accelerate import AccelerateRequest, GraphOfBatch, accelerate
from nnstretch.accelerate.machine.accelerator_file import UNIT_KINDS, UNITS, UNKNOWN, entries
from nnstretch.accelerate.machine.load_accelerator import load_accelerator, read_accelerator
from nnstretch.chip.accelerator import Accelerator
from nnstretch.errors import BadInput, BadPlan

MOST_VALUES = 24
KNEE_SHARE = 0.95
"""The knee is the first value with this share of the best rate."""
NUMBER = re.compile(r"((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)([A-Za-z/]*)")


def sweep_values(text: str) -> tuple[str, list[str]]:
    """Parse `local_buffer.size=0.25MiB:4MiB` as a field and values, each twice the one before.

    Raises BadInput where it is none.
    """
    name, equals, bounds = text.partition("=")
    low, colon, high = bounds.partition(":")
    first, last = NUMBER.fullmatch(low), NUMBER.fullmatch(high)
    if not (equals and colon and first and last) or not same_kind(first[2], last[2]):
        raise BadInput(
            f"--sweep is {text!r}, command line, write FIELD=A:B, A and B in the same unit or in"
            " units of one kind, as 256KiB:4MiB"
        )
    start, stop = float(first[1]), float(last[1])
    if first[2] != last[2]:
        stop *= UNITS[last[2]] / UNITS[first[2]]
    doublings = math.log2(stop / start) if 0 < start <= stop < math.inf else math.inf
    if doublings > MOST_VALUES:
        raise BadInput(
            f"--sweep is {text!r}, command line, A is more than 0, B is at least A and no more"
            f" than {MOST_VALUES} doublings of it"
        )
    count = math.floor(doublings + 1e-9) + 1
    return name, [f"{start * 2**k:.12g}{first[2]}" for k in range(count)]


def parse_sweep(text: str, assume: Sequence[str]) -> tuple[str, list[str]]:
    """Parse a sweep as `sweep_values`. Raises BadInput for a field that is assumed, too."""
    name, values = sweep_values(text)
    if name in [setting.partition("=")[0] for setting in assume]:
        raise BadInput(f"field {name!r} is set twice, --assume and --sweep, name each field once")
    return name, values


def base_machine(machine: str, assume: Sequence[str], policy: str, text: str | None) -> Accelerator:
    """Load the machine beside whose schedule a field is swept, where one is.

    A field that the description leaves unknown has the first value of the sweep. Raises as
    `load_accelerator` and `parse_sweep`.
    """
    if text is None:
        return load_accelerator(machine, assume, policy)
    name, values = parse_sweep(text, assume)
    # Of a known field, too: a wrong name, unit or end is refused before anything is scheduled.
    with_first = load_accelerator(machine, assume, policy, [f"{name}={values[0]}"])
    load_accelerator(machine, assume, policy, [f"{name}={values[-1]}"])
    entry = dict(entries(read_accelerator(machine))).get(name)
    is_unknown = entry is not None and entry.value == UNKNOWN
    return with_first if is_unknown else load_accelerator(machine, assume, policy)


def same_kind(first: str, last: str) -> bool:
    """Return whether two units are the same or sizes, rates or frequencies both."""
    return first == last or any({first, last} <= set(units) for units in UNIT_KINDS)


def sweep(
    graph_of: GraphOfBatch,
    request: AccelerateRequest,
    machine: str,
    assume: Sequence[str],
    text: str,
) -> dict[str, Any]:
    """Return the rate at each value of a field, and the knee.

    Raises BadInput for an unknown field, one that is assumed, too, or values of another unit.
    """
    name, values = parse_sweep(text, assume)
    rows: list[dict[str, Any]] = []
    for value in values:
        swept = [f"{name}={value}"]
        described = load_accelerator(machine, assume, request.options.policy, swept)
        rates = replace(request.rates, accelerator=described)
        row: dict[str, Any] = {"value": value, "throughput_per_s": None, "spills": None}
        try:
            result = accelerate(graph_of, replace(request, rates=rates))
        except BadPlan as refusal:
            row["refused"] = str(refusal)
        else:
            row["throughput_per_s"] = result.throughput_per_s
            row["spills"] = len(result.schedule.placed.spills)
        rows.append(row)
    return {"field": name, "rows": rows, "knee": knee(rows)}


def knee(rows: Sequence[dict[str, Any]]) -> str | None:
    """Return the first value whose rate is close to the best, None where nothing fits."""
    rates = [row["throughput_per_s"] for row in rows if row["throughput_per_s"]]
    for row in rows:
        if row["throughput_per_s"] and row["throughput_per_s"] >= KNEE_SHARE * max(rates):
            return str(row["value"])
    return None
