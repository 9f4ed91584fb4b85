"""What pictures of a chip schedule show, as JSON: `chip.json` of `accelerate --out FOLDER`.

Kernels by group, what lies in which buffer when, what each engine does when, and what each group
computes and moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nnstretch.accelerate.accelerate import AccelerateResult
from nnstretch.accelerate.engines.placed_program import residencies_of
from nnstretch.accelerate.engines.simulate import end_times_us
from nnstretch.accelerate.machine.rates import MATRIX
from nnstretch.accelerate.operator_work import matrix_shape
from nnstretch.accelerate.policies import ClusterSchedule
from nnstretch.chip.instances import LOCAL, SHARED, Instance

FORMAT = 1
Bounds = dict[int, tuple[float, float]]
"""First start and last end by number of kernel, us."""


def chip_document(result: AccelerateResult, answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of a schedule; `answer` is its result as the verb prints it."""
    schedule = result.schedule
    starts, ends = times_us(schedule)
    kernels = kernel_bounds(schedule, starts, ends)
    machine = schedule.rates.accelerator
    buffers = {LOCAL: machine.local_bytes, SHARED: machine.shared_bytes}
    shown = ("model", "accelerator", "batch", "policy", "overlap", "per_cluster", "iterations")
    rates = ("throughput_per_s", "bound_per_s", "bound_by", "assumed")
    return {
        "format": FORMAT,
        "chip": {name: answer[name] for name in (*shown, *rates)},
        "latency_us": schedule.latency_us,
        "peak_macs_per_us": machine.macs_per_s(schedule.rates.element_type) / 1e6,
        "ddr_bytes_per_us": machine.ddr.bytes_per_s / 1e6,
        "groups": group_rows(result, kernels),
        "kernels": kernel_rows(schedule.order, kernels),
        "engines": engine_spans(schedule, starts, ends),
        "buffers": [
            {
                "name": name,
                "size_bytes": size_bytes,
                "tensors": tensors(schedule, name, starts, ends),
            }
            for name, size_bytes in buffers.items()
            if size_bytes
        ],
        "sweep": answer.get("sweep"),
    }


def times_us(schedule: ClusterSchedule) -> tuple[list[float], list[float]]:
    """Return when each instruction starts and ends, to a millionth of a microsecond."""
    ends = end_times_us(schedule.instructions, schedule.needs)
    pairs = zip(schedule.instructions, ends, strict=True)
    starts = [round(end_us - item.duration_us, 6) for item, end_us in pairs]
    return starts, [round(end_us, 6) for end_us in ends]


def kernel_bounds(schedule: ClusterSchedule, starts: list[float], ends: list[float]) -> Bounds:
    """Return from when to when each kernel works."""
    kernels: Bounds = {}
    for item, start_us, end_us in zip(schedule.instructions, starts, ends, strict=True):
        first_us, last_us = kernels.get(item.kernel, (start_us, end_us))
        kernels[item.kernel] = min(first_us, start_us), max(last_us, end_us)
    return kernels


def kernel_rows(order: Sequence[Instance], kernels: Bounds) -> list[dict[str, Any]]:
    """Return when each instance is computed; one without instructions is left out."""
    rows: list[dict[str, Any]] = []
    for number, instance in enumerate(order):
        if number in kernels:
            start_us, end_us = kernels[number]
            times = {"start_us": start_us, "end_us": end_us}
            rows.append({"name": instance.name, "group": instance.group, **times})
    return rows


def group_rows(result: AccelerateResult, kernels: Bounds) -> list[dict[str, Any]]:
    """Return what each group computes, moves over DDR and takes, in all its parts."""
    schedule = result.schedule
    group_of_kernel = {number: item.group for number, item in enumerate(schedule.order)}
    moved = [0] * len(schedule.groups)
    matrix_us = [0.0] * len(schedule.groups)
    macs = [0] * len(schedule.groups)
    taken_us = [0.0] * len(schedule.groups)
    for item in schedule.instructions:
        number = group_of_kernel[item.kernel]
        moved[number] += item.size_bytes if item.engine.startswith("dma") else 0
        matrix_us[number] += item.duration_us if item.engine == MATRIX else 0.0
    for number, instance in enumerate(schedule.order):
        start_us, end_us = kernels.get(number, (0.0, 0.0))
        taken_us[instance.group] += end_us - start_us
        for name, box in instance.boxes.items():
            shape = matrix_shape(result.chip, name, box)
            macs[instance.group] += 0 if shape is None else shape.macs
    return [
        {
            "name": group.name,
            "first": group.operators[0],
            "last": group.operators[-1],
            "operators": len(group.operators),
            "parts": group.split.factor,
            "peak_bytes": group.peak_bytes,
            "macs": macs[number],
            "ddr_bytes": moved[number],
            "matrix_us": matrix_us[number],
            "taken_us": taken_us[number],
        }
        for number, group in enumerate(schedule.groups)
    ]


def engine_spans(
    schedule: ClusterSchedule, starts: list[float], ends: list[float]
) -> list[dict[str, Any]]:
    """Return what engines do, an engine's instructions of one step as one span."""
    spans: dict[tuple[str, int], list[float]] = {}
    for item, start_us, end_us in zip(schedule.instructions, starts, ends, strict=True):
        span = spans.setdefault((item.engine, item.step), [start_us, end_us, 0.0])
        span[0], span[1] = min(span[0], start_us), max(span[1], end_us)
        span[2] += item.duration_us
    steps = schedule.placed.program.steps
    return [
        {
            "engine": engine,
            "step": steps[number].name,
            "group": schedule.order[steps[number].kernel].group,
            "start_us": span[0],
            "end_us": span[1],
            "busy_us": span[2],
        }
        for (engine, number), span in spans.items()
    ]


def tensors(
    schedule: ClusterSchedule, buffer: str, starts: list[float], ends: list[float]
) -> list[dict[str, Any]]:
    """Return what lies in a buffer, from its first write to its last use.

    Engines run ahead, so instructions at a tensor's addresses count, not those of its steps. Of the
    local buffers, bytes are those of all cores.
    """
    cores = schedule.rates.accelerator.cores if buffer == LOCAL else 1
    touching: dict[int, list[tuple[int, int, float, float]]] = {}
    for item, start_us, end_us in zip(schedule.instructions, starts, ends, strict=True):
        for region in (*item.reads, *item.writes):
            if region.buffer == buffer and region.stop > region.start:
                touch = (region.start, region.stop, start_us, end_us)
                touching.setdefault(item.step, []).append(touch)
    rows: list[dict[str, Any]] = []
    for place in residencies_of(schedule.placed):
        if place.buffer != buffer or not place.size_bytes:
            continue
        stop = place.address + place.size_bytes
        during: list[tuple[float, float]] = []
        for step in range(place.first_step, place.last_step + 1):
            for first, last, start_us, end_us in touching.get(step, ()):
                if first < stop and place.address < last:
                    during.append((start_us, end_us))
        if during:
            rows.append(
                {
                    "name": place.tensor,
                    "start_us": min(start_us for start_us, _ in during),
                    "end_us": max(end_us for _, end_us in during),
                    "address": place.address * cores,
                    "size_bytes": place.size_bytes * cores,
                }
            )
    return rows


def bytes_over_time(schedule: ClusterSchedule) -> dict[str, list[tuple[float, float]]]:
    """Return the bytes that lie in each buffer from each instant on."""
    starts, ends = times_us(schedule)
    changes: dict[str, dict[float, int]] = {}
    for buffer in (LOCAL, SHARED):
        for row in tensors(schedule, buffer, starts, ends):
            at = changes.setdefault(buffer, {})
            at[row["start_us"]] = at.get(row["start_us"], 0) + row["size_bytes"]
            at[row["end_us"]] = at.get(row["end_us"], 0) - row["size_bytes"]
    levels: dict[str, list[tuple[float, float]]] = {}
    for buffer, at in changes.items():
        level = 0
        levels[f"{buffer} buffer"] = []
        for instant_us in sorted(at):
            level += at[instant_us]
            levels[f"{buffer} buffer"].append((instant_us, float(level)))
    return levels
