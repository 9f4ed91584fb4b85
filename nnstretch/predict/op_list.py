"""Operator lists as deployed (`ops_mi9.csv`) -> latency, priced exactly as a plan is.

A list names every operator of a configuration, the part it belongs to, its branch and its device.
Branches of a part run side by side and meet at the part's concat; branch -1 is what all of them
share.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from nnstretch.errors import BrokenFile, UnknownName
from nnstretch.kernel import FusionRules, Kernel
from nnstretch.soc import Soc
from nnstretch.structure.segment_cost import BranchDemand, residencies, segment_cost
from nnstretch.trial import SegmentCost

COLUMNS = (
    "config",
    "part",
    "branch",
    "device",
    "name",
    "kind",
    "k",
    "s",
    "groups",
    "cin",
    "cout",
    "hw_in",
    "hw_out",
    "macs",
    "params",
)
LABELS = ("config", "part", "device", "name", "kind")
COUNTED = ("branch", "k", "s", "groups", "cin", "cout", "hw_in", "hw_out", "macs", "params")
KINDS = {
    "conv": "conv",
    "dwconv": "dwconv",
    "fc": "linear",
    "maxpool": "pool",
    "gap": "gap",
    "add": "add",
    "concat": "concat",
}
MOST = 2**53
"""Counts beyond this are no counts: they would not even be exact."""


@dataclass(frozen=True, slots=True)
class OpListRow:
    """One row."""

    line: int
    config: str
    part: str
    device: str
    name: str
    kind: str
    branch: int
    k: int
    s: int
    groups: int
    cin: int
    cout: int
    hw_in: int
    """Side of the square map."""
    hw_out: int
    macs: int
    params: int


@dataclass(frozen=True, slots=True)
class OpListBranch:
    """Consecutive operators of one processor in an operator list."""

    processor: str
    kernels: tuple[Kernel, ...]
    elements_in: int
    elements_out: int


@dataclass(frozen=True, slots=True)
class OpListSegment:
    """What lies between two meeting points."""

    name: str
    branches: tuple[OpListBranch, ...]


Pricing = Callable[[OpListBranch], tuple[float, float]]
"""Compute of a branch and its usual error, in microseconds."""


def predict_ops(path: str | Path, soc: Soc) -> dict[str, float]:
    """Return latency in milliseconds of every configuration in a file."""
    pricing = predict_segments(soc)
    return {
        config: sum(cost.latency_us for cost in segment_costs(parts, soc, pricing)) / 1000
        for config, parts in read_ops(path, soc).items()
    }


def predict_segments(soc: Soc) -> Pricing:
    """Return a function that prices the segments of one configuration."""

    def price(branch: OpListBranch) -> tuple[float, float]:
        estimate = soc.predictors[branch.processor].estimate
        estimates = [estimate(kernel) for kernel in branch.kernels]
        return sum(e.latency_us for e in estimates), sum(e.error_us for e in estimates)

    return price


def segment_costs(
    parts: Sequence[OpListSegment], soc: Soc, pricing: Pricing
) -> tuple[SegmentCost, ...]:
    """Estimate every part; a network on one accelerator goes there and comes back once."""
    edges = residencies([[branch.processor for branch in part.branches] for part in parts])
    works = [
        tuple(branch_demand(branch, soc.element_bytes, pricing) for branch in part.branches)
        for part in parts
    ]
    return tuple(
        segment_cost(soc, works[i], edges[i], end=part.name) for i, part in enumerate(parts)
    )


def branch_demand(branch: OpListBranch, element_bytes: int, pricing: Pricing) -> BranchDemand:
    """Return what a branch of an operator list demands of its processor."""
    compute_us, error_us = pricing(branch)
    macs = sum(kernel.macs for kernel in branch.kernels)
    return BranchDemand(
        branch.processor,
        compute_us,
        error_us,
        branch.elements_in * element_bytes,
        branch.elements_out * element_bytes,
        macs,
    )


def read_ops(path: str | Path, soc: Soc) -> dict[str, tuple[OpListSegment, ...]]:
    """Return the parts of every configuration, in the order of the file.

    Raises BrokenFile when the file breaks its own order.
    """
    path = Path(path)
    rows = list(read_rows(path, {processor.name for processor in soc.processors}, soc.name))
    networks: dict[str, tuple[OpListSegment, ...]] = {}
    for config, ops in groupby(rows, key=lambda op: op.config):
        if config in networks:
            raise BrokenFile(
                f"configuration {config} starts a second time, {path}, its rows must follow one"
                " another"
            )
        networks[config] = tuple(split_segments(ops, path, soc))
        if not networks[config]:
            raise BrokenFile(
                f"configuration {config} has no operator to run, {path}, it needs at least 1"
            )
    if not networks:
        raise BrokenFile(f"no operators, {path}, it has a header and 0 rows")
    return networks


def split_segments(ops: Iterator[OpListRow], path: Path, soc: Soc) -> Iterator[OpListSegment]:
    """Yield the parts of a configuration: runs of branches become one part; shared operators become
    parts of their own.

    A concat is the merge.

    Raises BrokenFile when two branches share a processor.
    """
    for (part, shared), group in groupby(ops, key=lambda op: (op.part, op.branch < 0)):
        branches = []
        for _, run in groupby(group, key=lambda op: op.branch):
            if branch := op_list_branch(
                [op for op in run if op.kind != "concat" or op.branch >= 0], path, soc
            ):
                branches.append(branch)
        names = [branch.processor for branch in branches]
        if not shared and len(set(names)) != len(names):
            raise BrokenFile(
                f"branches of {part} run on {', '.join(names)}, {path}, each needs a processor of"
                " its own"
            )
        if branches:
            yield OpListSegment(part, tuple(branches))


def op_list_branch(ops: list[OpListRow], path: Path, soc: Soc) -> OpListBranch | None:
    """Return consecutive rows of one processor as a branch; None where there is none.

    Raises BrokenFile when rows of two processors mix.
    """
    if not ops:
        return None
    for op in ops:
        if op.device != ops[0].device:
            raise BrokenFile(
                f"device {op.device} in a branch on {ops[0].device}, {path} line {op.line}, one"
                " branch runs on one processor"
            )
    first, last = ops[0], ops[-1]
    return OpListBranch(
        first.device,
        tuple(fuse_rows(ops, soc.rules(first.device))),
        first.cin * first.hw_in**2,
        last.cout * last.hw_out**2,
    )


def fuse_rows(ops: list[OpListRow], rules: FusionRules) -> Iterator[Kernel]:
    """Yield rows with sums joined to the kernel before them where the backend fuses them, as
    `structure.kernels` does in a captured network.
    """
    pending: Kernel | None = None
    for op in ops:
        size = op.cout * op.hw_out**2
        if (
            op.kind == "add"
            and pending is not None
            and rules.fuses(pending.kind, "add")
            and pending.write_elements == size
        ):
            pending = replace(
                pending, read_elements=pending.read_elements + size, nodes=(*pending.nodes, op.name)
            )
            continue
        if pending is not None:
            yield pending
        pending = kernel_of_row(op)
    if pending is not None:
        yield pending


def kernel_of_row(op: OpListRow) -> Kernel:
    """Return the kernel that a row describes."""
    kind = "gconv" if op.kind == "conv" and op.groups > 1 else KINDS[op.kind]
    read, write = op.cin * op.hw_in**2, op.cout * op.hw_out**2
    return Kernel(
        name=op.name,
        kind=kind,
        cin=op.cin,
        cout=op.cout,
        hw_in=op.hw_in**2,
        hw_out=op.hw_out**2,
        kernel=max(1, op.k),
        stride=op.s,
        groups=op.groups,
        batch=1,
        macs=op.macs,
        read_elements=2 * read if kind == "add" else read,
        write_elements=write,
        weight_elements=op.params,
        nodes=(op.name,),
    )


def read_rows(path: Path, devices: set[str], soc: str) -> Iterator[OpListRow]:
    """Yield the rows of a CSV file. Raises BrokenFile."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise UnknownName(f"no operator list, {path}, the file does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BrokenFile(f"cannot be read, {path}, {error}") from None
    reader = csv.reader(lines)
    header = next(reader, [])
    if missing := [name for name in COLUMNS if name not in header]:
        raise BrokenFile(
            f"column {missing[0]!r} is missing, {path} line 1, needed are {', '.join(COLUMNS)}"
        )
    for cells in reader:
        if not cells:
            continue
        if len(cells) != len(header):
            raise BrokenFile(
                f"{len(cells)} cells, {path} line {reader.line_num}, the header has {len(header)}"
            )
        yield parse_row(
            dict(zip(header, cells, strict=True)),
            f"{path} line {reader.line_num}",
            reader.line_num,
            devices,
            soc,
        )


def parse_row(row: dict[str, str], where: str, line: int, devices: set[str], soc: str) -> OpListRow:
    """Parse one row. Raises BrokenFile."""
    if row["device"] not in devices:
        raise UnknownName(
            f"unknown device {row['device']!r}, {where}, {soc} has {', '.join(sorted(devices))}"
        )
    if row["kind"] not in KINDS:
        raise BrokenFile(
            f"unknown kind {row['kind']!r}, {where}, known are {', '.join(sorted(KINDS))}"
        )
    if not row["config"]:
        raise BrokenFile(f"column 'config' is empty, {where}, every row names its configuration")
    fields: dict[str, Any] = {
        name: row[name] for name in ("config", "part", "device", "name", "kind")
    }
    fields |= {name: whole_number(row, name, where) for name in COUNTED}
    return OpListRow(line=line, **fields)


def whole_number(row: dict[str, str], name: str, where: str) -> int:
    """Return a cell that is a whole number. Raises BrokenFile."""
    least = {"branch": -1, "cin": 1, "cout": 1, "hw_in": 1, "hw_out": 1, "groups": 1}.get(name, 0)
    try:
        value = int(row[name])
    except ValueError:
        raise BrokenFile(
            f"column {name!r} is {row[name]!r}, {where}, needed is a whole number"
        ) from None
    if not least <= value <= MOST:
        raise BrokenFile(
            f"column {name!r} is {row[name][:40]}, {where}, needed is at least {least} and at most"
            f" {MOST}"
        )
    return value
