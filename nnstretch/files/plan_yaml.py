"""Plans as YAML, read as data that a stranger may have written.

    format: 1
    model: torchvision:resnet18
    input: [1, 3, 224, 224]
    soc: mi9                   # the chip it was made for; may be absent
    merge: concat              # or project; a segment may say otherwise
    segments:
    - {end: maxpool, processor: cpu}
    - end: layer1
      branches:
      - {processor: cpu, depth: 2, width: 48}
      - {processor: dsp, depth: 0.5x, width: 0.5x}
    - {end: output, processor: cpu}

A segment starts where the one before ends. Depths and widths are absolute, or ratios to the
original's (`0.5x`), which lowering turns into the nearest that can be had. `input_shape` for
`input`, and a segment's own `start`, are read as well.
"""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from reprlib import Repr
from typing import Any

import yaml

from nnstretch.errors import BadPlan, BrokenFile, UnknownName, one_line
from nnstretch.files.atomic import write_text
from nnstretch.files.strict_yaml import parse_yaml
from nnstretch.plan import Branch, Plan, Segment

FORMAT = 1
WHOLE = ("depth", "width", "group_width", "width_in", "width_out")
SCALABLE = ("depth", "width")
LARGEST = 1 << 20
LARGEST_RATIO = 64
RATIO = re.compile(r"(\d{1,3}(\.\d{1,6})?|\.\d{1,6})x", re.ASCII)
BRANCH = {f.name for f in fields(Branch)}
MERGES = ("concat", "project")


def read_plan(path: str | Path) -> Plan:
    """Read a plan file. Raises UnknownName for a missing file, BrokenFile for one that is no plan,
    BadPlan for impossible numbers.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UnknownName(f"no plan file {path}, {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise BrokenFile(f"plan {path} is no text, byte {error.start}, {error.reason}") from error
    return parse_plan(text, str(path))


def parse_plan(text: str, where: str) -> Plan:
    """Parse a plan from YAML text. Raises BrokenFile or BadPlan."""
    return plan_of(parse_yaml(text, f"plan {where}"), where)


def short_repr(value: Any) -> str:
    """Return a value as a message shows it: short, on one line, however large or deep it is."""
    short = Repr()
    short.maxlevel, short.maxstring, short.maxother = 2, 60, 60
    return one_line(short.repr(value))


def plan_of(data: Any, where: str) -> Plan:
    """Return the plan in parsed YAML. Raises BadPlan."""
    table = mapping(
        data,
        where,
        {"format", "model", "input", "input_shape", "soc", "merge", "segments"},
        {"model", "segments"},
    )
    version = table.get("format", FORMAT)
    if type(version) is not int or version != FORMAT:
        raise BrokenFile(
            f"plan {where} has format {short_repr(version)}, this version reads format {FORMAT}"
        )
    merge = merge_of(table.get("merge"), where, "concat")
    segments = table["segments"]
    if not isinstance(segments, list) or not segments:
        raise BadPlan(
            f"segments is {short_repr(segments)}, plan {where}, it must be a list of at least one"
            " segment"
        )
    read: list[Segment] = []
    for number, segment in enumerate(segments):
        read.append(
            segment_of(
                segment, f"{where}, segment {number}", read[-1].end if read else "input", merge
            )
        )
    soc = string(table, "soc", where) if table.get("soc") is not None else None
    return Plan(string(table, "model", where), shape_of(table, where), tuple(read), soc)


def shape_of(table: dict[str, Any], where: str) -> tuple[int, ...]:
    """Return the input shape of a plan. Raises BadPlan."""
    keys = [key for key in ("input", "input_shape") if key in table]
    if len(keys) != 1:
        raise BadPlan(
            f"{' and '.join(keys) or 'missing key input'}, plan {where}, it needs one input: [1,"
            " 3, 224, 224] or the like"
        )
    shape = table[keys[0]]
    if (
        not isinstance(shape, list)
        or not 1 <= len(shape) <= 8
        or not all(type(d) is int and 0 < d < LARGEST for d in shape)
    ):
        raise BadPlan(
            f"{keys[0]} is {short_repr(shape)}, plan {where}, it must be a list of positive whole"
            " numbers"
        )
    return tuple(shape)


def merge_of(value: Any, where: str, otherwise: str) -> str:
    """Return how branches merge. Raises BadPlan."""
    if value is None:
        return otherwise
    if value not in MERGES:
        raise BadPlan(
            f"unknown merge {short_repr(value)}, plan {where}, it is {' or '.join(MERGES)}"
        )
    return str(value)


def segment_of(data: Any, where: str, start: str, merge: str) -> Segment:
    """Return one segment of a plan. Raises BadPlan."""
    table = mapping(data, where, {"start", "end", "merge", "branches"} | BRANCH, {"end"})
    if ("branches" in table) == ("processor" in table):
        raise BadPlan(
            f"{'both' if 'branches' in table else 'neither'} branches and processor, plan {where},"
            " a segment has one of them"
        )
    alone = {key: value for key, value in table.items() if key in BRANCH}
    if alone and "branches" in table:
        raise BadPlan(
            f"{next(iter(alone))} is beside branches, plan {where}, it belongs to one of them"
        )
    branches = table.get("branches", [alone])
    if not isinstance(branches, list) or not branches:
        raise BadPlan(
            f"branches is {short_repr(branches)}, plan {where}, it must be a list of at least one"
            " branch"
        )
    read = tuple(branch_of(b, f"{where}, branch {i}") for i, b in enumerate(branches))
    begins = string(table, "start", where) if "start" in table else start
    return Segment(
        begins, string(table, "end", where), read, merge_of(table.get("merge"), where, merge)
    )


def branch_of(data: Any, where: str) -> Branch:
    """Return one branch of a segment. Raises BadPlan."""
    table = mapping(data, where, BRANCH, {"processor"})
    for key in WHOLE:
        value = table.get(key)
        if value is None or (key in SCALABLE and is_ratio(value)):
            continue
        if type(value) is not int or not 0 < value < LARGEST:
            ratio = " or a ratio above 0 such as 0.5x" if key in SCALABLE else ""
            raise BadPlan(
                f"{key} is {short_repr(value)}, plan {where}, it must be a whole number of at least"
                f" 1{ratio}"
            )
    inner = table.get("inner_ratio")
    if inner is not None and (type(inner) not in (int, float) or not 0 < inner <= 64):
        raise BadPlan(
            f"inner_ratio is {short_repr(inner)}, plan {where}, it must be a number above 0 and at"
            " most 64"
        )
    if table.get("activation") is not None:
        string(table, "activation", where)
    string(table, "processor", where)
    return Branch(**table)


def is_ratio(value: Any) -> bool:
    """Return whether it is a share of the original's, spelt `0.5x`."""
    return (
        isinstance(value, str)
        and RATIO.fullmatch(value) is not None
        and 0 < float(value[:-1]) <= LARGEST_RATIO
    )


def mapping(data: Any, where: str, known: set[str], needed: set[str]) -> dict[str, Any]:
    """Return a mapping with known keys and all needed ones. Raises BadPlan."""
    if not isinstance(data, dict):
        raise BrokenFile(
            f"plan {where} is {short_repr(data)}, it must be a mapping with"
            f" {', '.join(sorted(needed))}"
        )
    if unknown := [key for key in data if key not in known]:
        raise BadPlan(
            f"unknown key {short_repr(unknown[0])}, plan {where}, it knows"
            f" {', '.join(sorted(known))}"
        )
    if missing := sorted(needed - data.keys()):
        raise BadPlan(f"missing key {missing[0]!r}, plan {where}")
    return data


def string(table: dict[str, Any], key: str, where: str) -> str:
    """Return a string at a key. Raises BadPlan."""
    value = table[key]
    if not isinstance(value, str) or not value or not value.isprintable():
        raise BadPlan(f"{key} is {short_repr(value)}, plan {where}, it must be a name")
    return value


def plan_text(plan: Plan) -> str:
    """Return YAML that reads back as the same plan; defaults are left out."""
    merges = [segment.merge for segment in plan.segments]
    merge = max(MERGES, key=merges.count)
    data: dict[str, Any] = {"format": FORMAT, "model": plan.model, "input": list(plan.input_shape)}
    if plan.soc is not None:
        data["soc"] = plan.soc
    starts = ["input", *(segment.end for segment in plan.segments)]
    rows = [
        row_of(segment, start, merge) for segment, start in zip(plan.segments, starts, strict=False)
    ]
    data |= {"merge": merge, "segments": rows}
    return yaml.safe_dump(
        data, sort_keys=False, default_flow_style=None, width=150, allow_unicode=True
    )


def row_of(segment: Segment, start: str, merge: str) -> dict[str, Any]:
    """Return a segment as the file spells it; `segment_data` is the form that leaves nothing
    out.
    """
    data: dict[str, Any] = {"start": segment.start} if segment.start != start else {}
    data["end"] = segment.end
    if segment.merge != merge:
        data["merge"] = segment.merge
    branches = [branch_data(branch) for branch in segment.branches]
    return data | (branches[0] if len(branches) == 1 else {"branches": branches})


def segment_data(segment: Segment) -> dict[str, Any]:
    """Return a segment as plain data."""
    data: dict[str, Any] = {"start": segment.start, "end": segment.end}
    if segment.merge != "concat":
        data["merge"] = segment.merge
    data["branches"] = [branch_data(branch) for branch in segment.branches]
    return data


def branch_data(branch: Branch) -> dict[str, Any]:
    """Return a branch as plain data, defaults left out."""
    return {f.name: value for f in fields(Branch) if (value := getattr(branch, f.name)) is not None}


def write_plan(path: str | Path, plan: Plan) -> None:
    """Write a plan as YAML, whole or not at all."""
    write_text(Path(path), plan_text(plan))
