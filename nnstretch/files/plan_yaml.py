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
`input`, and a segment's own `start`, are read as well; `dtype: int64` beside `input` says that
tokens are read, and not numbers. A section `predicted` may follow, which
remembers what the plan was predicted to cost (files/plan_prediction.py).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from nnstretch.errors import BadPlan, BrokenFile
from nnstretch.files.atomic import write_text
from nnstretch.files.checked import check_settings, checked
from nnstretch.files.decode import decode, require_format
from nnstretch.files.limits import Length
from nnstretch.files.plan_prediction import PlanPrediction
from nnstretch.files.read import as_path, read_text
from nnstretch.files.strict_yaml import dump_yaml, parse_yaml
from nnstretch.graph import ElementType
from nnstretch.plan import MERGES, Branch, Count, InnerRatio, Merge, Name, Plan, Ratio, Segment

FORMAT = 1
BRANCH_KEYS = tuple(field.name for field in fields(Branch))
InputShape = Annotated[tuple[Count, ...], Length(1, 8)]


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """A segment as the file spells it: branches, or the keys of its only one; None for no key."""

    end: Name
    start: Name = ""
    merge: Merge | None = None
    branches: Annotated[tuple[Branch, ...], Length(1)] = ()
    processor: Name = ""
    depth: Count | Ratio | None = None
    width: Count | Ratio | None = None
    inner_ratio: InnerRatio | None = None
    group_width: Count | None = None
    activation: Name | None = None
    width_in: Count | None = None
    width_out: Count | None = None

    def __post_init__(self) -> None:
        if bool(self.branches) == bool(self.processor):
            both = "both" if self.branches else "neither"
            raise ValueError(f"{both} branches and processor, a segment has one of them")
        if self.branches and (beside := list(self.only_branch())):
            raise ValueError(f"{beside[0]} is beside branches, it belongs to one of them")

    def only_branch(self) -> dict[str, Any]:
        """Return the keys of a branch that the segment itself holds."""
        values = {key: getattr(self, key) for key in BRANCH_KEYS}
        return {key: value for key, value in values.items() if value not in (None, "")}


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A plan as the file spells it."""

    model: Name
    segments: Annotated[tuple[SegmentRow, ...], Length(1)]
    format: int = FORMAT
    input: InputShape = ()
    input_shape: InputShape = ()
    dtype: ElementType | None = None
    soc: Name | None = None
    merge: Merge | None = None
    predicted: PlanPrediction | None = None

    def __post_init__(self) -> None:
        if bool(self.input) == bool(self.input_shape):
            both = "input and input_shape" if self.input else "missing key input"
            raise ValueError(f"{both}, it needs one input: [1, 3, 224, 224] or the like")


def read_plan(path: str | Path) -> Plan:
    """Read a plan file. Raises UnknownName, BrokenFile for no plan, BadPlan for a wrong one."""
    return read_predicted_plan(path)[0]


def read_predicted_plan(path: str | Path) -> tuple[Plan, PlanPrediction | None]:
    """Read a plan file with what it was predicted to cost, if it says. Raises as `read_plan`."""
    return parse_predicted_plan(read_text(as_path(path, "plan"), "plan"), str(path))


def parse_plan(text: str, where: str) -> Plan:
    """Parse a plan from YAML text. Raises BrokenFile or BadPlan."""
    return parse_predicted_plan(text, where)[0]


def parse_predicted_plan(text: str, where: str) -> tuple[Plan, PlanPrediction | None]:
    """Parse a plan and its prediction from YAML text. Raises BrokenFile or BadPlan."""
    data = parse_yaml(text, f"plan {where}")
    try:
        if not isinstance(data, dict) or "format" in data:
            require_format(data, (FORMAT,))
    except ValueError as error:
        raise BrokenFile(f"plan {where}, {error}") from None
    try:
        file: PlanFile = decode(PlanFile, data, "plan")
        return plan_of(file), file.predicted
    except ValueError as error:
        raise BadPlan(f"{where}, {error}") from None


def plan_of(file: PlanFile) -> Plan:
    """Return the plan that a file spells: a segment starts where the one before ends."""
    segments: list[Segment] = []
    for row in file.segments:
        start = row.start or (segments[-1].end if segments else "input")
        branches = row.branches or (Branch(**row.only_branch()),)
        merge = row.merge or file.merge or MERGES[0]
        segments.append(Segment(start, row.end, branches, merge))
    shape = file.input or file.input_shape
    return Plan(file.model, shape, tuple(segments), file.soc, file.dtype or "")


def plan_text(plan: Plan) -> str:
    """Return YAML that reads back as the same plan; defaults are left out.

    Raises BadInput or BadPlan for a plan that was made in Python and no file can hold.
    """
    check_plan(plan)
    return dump_yaml(plan_data(plan))


def check_plan(plan: Plan) -> None:
    """Check a plan that was made in Python as one of a file.

    Raises BadInput with the name of a field of another kind, BadPlan for one out of range.
    """
    check_settings(plan)
    for segment in plan.segments:
        check_settings(segment)
    try:
        decode(PlanFile, plan_data(plan), "plan")
    except ValueError as error:
        raise BadPlan(f"{plan.model}, {error}") from None


def plan_data(plan: Plan) -> dict[str, Any]:
    """Return a plan as the file spells it."""
    merges = [segment.merge for segment in plan.segments]
    merge = max(MERGES, key=merges.count)
    data: dict[str, Any] = {"format": FORMAT, "model": plan.model, "input": list(plan.input_shape)}
    if plan.input_dtype:
        data["dtype"] = plan.input_dtype
    if plan.soc is not None:
        data["soc"] = plan.soc
    starts = ["input", *(segment.end for segment in plan.segments)]
    pairs = zip(plan.segments, starts, strict=False)
    rows = [row_of(segment, start, merge) for segment, start in pairs]
    return data | {"merge": merge, "segments": rows}


def row_of(segment: Segment, start: str, merge: str) -> dict[str, Any]:
    """Return a segment as the file spells it; `segment_data` leaves nothing out."""
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


@checked
def write_plan(path: str | Path, plan: Plan, predicted: PlanPrediction | None = None) -> None:
    """Write a plan as YAML, whole or not at all."""
    text = plan_text(plan)
    if predicted is not None:
        text += dump_yaml({"predicted": predicted.as_data()})
    write_text(Path(path), text)
