"""Plans as YAML, read as data that a stranger may have written.

    format: 1
    model: torchvision:resnet18
    input_shape: [1, 3, 224, 224]
    soc: mi9
    segments:
    - {start: input, end: maxpool, branches: [{processor: cpu}]}
    - start: maxpool
      end: layer1
      merge: concat            # or project
      branches:
      - {processor: cpu, depth: 2, width: 48}
      - {processor: dsp, depth: 1, width: 32}
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from nnstretch.errors import BadPlan, BrokenFile, UnknownName
from nnstretch.files import write_text
from nnstretch.plan import Branch, Plan, Segment

FORMAT = 1
WHOLE = ("depth", "width", "group_width", "width_in", "width_out")


def read_plan(path: str | Path) -> Plan:
    """Raises UnknownName for a missing file, BrokenFile for one that is no plan, BadPlan for impossible numbers."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UnknownName(f"no plan file {path}, {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise BrokenFile(f"plan {path} is no text, byte {error.start}, {error.reason}") from error
    return parse_plan(text, str(path))


def parse_plan(text: str, where: str) -> Plan:
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}" if mark else "somewhere"
        raise BrokenFile(f"plan {where} is no YAML, {line}, {getattr(error, 'problem', error)}") from error
    except RecursionError as error:
        raise BrokenFile(f"plan {where} is nested too deeply, it is no plan") from error
    return plan_of(data, where)


def plan_of(data: Any, where: str) -> Plan:
    table = mapping(data, where, {"format", "model", "input_shape", "soc", "segments"}, {"model", "input_shape", "segments"})
    if table.get("format", FORMAT) != FORMAT:
        raise BrokenFile(f"plan {where} has format {table['format']!r}, this version reads format {FORMAT}")
    shape = table["input_shape"]
    if not isinstance(shape, list) or not shape or not all(isinstance(d, int) and not isinstance(d, bool) and 0 < d < 1 << 20 for d in shape):
        raise BadPlan(f"input_shape is {shape!r}, plan {where}, it must be a list of positive whole numbers")
    segments = table["segments"]
    if not isinstance(segments, list) or not segments:
        raise BadPlan(f"segments is {type(segments).__name__}, plan {where}, it must be a list of at least one segment")
    soc = table.get("soc")
    read = tuple(segment_of(s, f"{where}, segment {i}") for i, s in enumerate(segments))
    return Plan(string(table, "model", where), tuple(shape), read, None if soc is None else str(soc))


def segment_of(data: Any, where: str) -> Segment:
    table = mapping(data, where, {"start", "end", "merge", "branches"}, {"start", "end", "branches"})
    merge = table.get("merge", "concat")
    if merge not in ("concat", "project"):
        raise BadPlan(f"unknown merge {merge!r}, plan {where}, it is concat or project")
    branches = table["branches"]
    if not isinstance(branches, list) or not branches:
        raise BadPlan(f"branches is {branches!r}, plan {where}, it must be a list of at least one branch")
    read = tuple(branch_of(b, f"{where}, branch {i}") for i, b in enumerate(branches))
    return Segment(string(table, "start", where), string(table, "end", where), read, merge)


def branch_of(data: Any, where: str) -> Branch:
    table = mapping(data, where, {f.name for f in fields(Branch)}, {"processor"})
    for key in WHOLE:
        value = table.get(key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 20):
            raise BadPlan(f"{key} is {value!r}, plan {where}, it must be a whole number of at least 1")
    ratio = table.get("inner_ratio")
    if ratio is not None and (not isinstance(ratio, (int, float)) or isinstance(ratio, bool) or not 0 < ratio <= 64):
        raise BadPlan(f"inner_ratio is {ratio!r}, plan {where}, it must be a number above 0 and at most 64")
    if table.get("activation") is not None:
        string(table, "activation", where)
    string(table, "processor", where)
    return Branch(**table)


def mapping(data: Any, where: str, known: set[str], needed: set[str]) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise BrokenFile(f"plan {where} is {type(data).__name__}, it must be a mapping with {', '.join(sorted(needed))}")
    if unknown := sorted(str(key) for key in data if key not in known):
        raise BadPlan(f"unknown key {unknown[0]!r}, plan {where}, it knows {', '.join(sorted(known))}")
    if missing := sorted(needed - data.keys()):
        raise BadPlan(f"missing key {missing[0]!r}, plan {where}")
    return data


def string(table: dict[str, Any], key: str, where: str) -> str:
    value = table[key]
    if not isinstance(value, str) or not value:
        raise BadPlan(f"{key} is {value!r}, plan {where}, it must be a name")
    return value


def plan_text(plan: Plan) -> str:
    """YAML that reads back as the same plan; fields that say nothing are left out."""
    data: dict[str, Any] = {"format": FORMAT, "model": plan.model, "input_shape": list(plan.input_shape)}
    if plan.soc is not None:
        data["soc"] = plan.soc
    data["segments"] = [segment_data(segment) for segment in plan.segments]
    return yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=150)


def segment_data(segment: Segment) -> dict[str, Any]:
    data: dict[str, Any] = {"start": segment.start, "end": segment.end}
    if segment.merge != "concat":
        data["merge"] = segment.merge
    data["branches"] = [{f.name: v for f in fields(Branch) if (v := getattr(b, f.name)) is not None} for b in segment.branches]
    return data


def write_plan(path: str | Path, plan: Plan) -> None:
    write_text(Path(path), plan_text(plan))
