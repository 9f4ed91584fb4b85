"""Operator lists as deployed (`ops_mi9.csv`) -> latency, estimated exactly as a plan is.

A list names every operator of a configuration, the part it belongs to, its branch and its device.
Branches of a part run side by side and meet at the part's concat; branch -1 is what all of them
share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from nnstretch.errors import BrokenFile
from nnstretch.files.checked import checked
from nnstretch.kernel import FusionRules, Kernel
from nnstretch.predict.op_list_csv import KINDS, OpListRow, read_rows
from nnstretch.predictor import require_estimate
from nnstretch.soc import Soc
from nnstretch.structure.segment_cost import BranchDemand, residencies, segment_cost
from nnstretch.trial import SegmentCost


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


Pricing = Callable[[OpListBranch, str], tuple[float, float]]
"""Compute of a branch under a price key and its usual error, in microseconds."""


@checked
def predict_ops(path: str | Path, soc: Soc) -> dict[str, float]:
    """Return latency in milliseconds of every configuration in a file."""
    pricing = predict_segments(soc)
    latency_ms: dict[str, float] = {}
    for config, parts in read_ops(path, soc).items():
        costs = segment_costs(parts, soc, pricing)
        latency_ms[config] = sum(cost.latency_us for cost in costs) / 1000
    return latency_ms


def predict_segments(soc: Soc) -> Pricing:
    """Return a function that estimates branches by the predictors of a chip.

    It raises BadInput where one of them gives no time.
    """

    def price(branch: OpListBranch, price_key: str) -> tuple[float, float]:
        estimate = soc.predictor(price_key).estimate
        estimates = [estimate(kernel) for kernel in branch.kernels]
        for kernel, of_kernel in zip(branch.kernels, estimates, strict=True):
            require_estimate(of_kernel, kernel, branch.processor)
        return sum(e.latency_us for e in estimates), sum(e.error_us for e in estimates)

    return price


def segment_costs(
    parts: Sequence[OpListSegment], soc: Soc, pricing: Pricing
) -> tuple[SegmentCost, ...]:
    """Estimate every part; a network on one accelerator goes there and comes back once."""
    edges = residencies([[branch.processor for branch in part.branches] for part in parts])
    costs: list[SegmentCost] = []
    for part, edge in zip(parts, edges, strict=True):
        team = [branch.processor for branch in part.branches]
        demands = tuple(branch_demand(branch, team, soc, pricing) for branch in part.branches)
        costs.append(segment_cost(soc, demands, edge, end=part.name))
    return tuple(costs)


def branch_demand(
    branch: OpListBranch, team: Sequence[str], soc: Soc, pricing: Pricing
) -> BranchDemand:
    """Return what a branch of an operator list demands of its processor."""
    compute_us, error_us = pricing(branch, soc.price_key(branch.processor, team))
    macs = sum(kernel.macs for kernel in branch.kernels)
    return BranchDemand(
        branch.processor,
        compute_us,
        error_us,
        branch.elements_in * soc.element_bytes,
        branch.elements_out * soc.element_bytes,
        macs,
    )


def read_ops(path: str | Path, soc: Soc) -> dict[str, tuple[OpListSegment, ...]]:
    """Return the parts of every configuration. Raises BrokenFile when its rows are not in order."""
    path = Path(path)
    rows = list(read_rows(path, soc))
    networks: dict[str, tuple[OpListSegment, ...]] = {}
    for config, ops in groupby(rows, key=lambda op: op.config):
        if config in networks:
            raise BrokenFile(
                f"configuration {config} starts a second time, {path}, its rows must be together"
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
    """Yield the parts of a configuration: branches side by side, or operators that all share.

    A shared concat is the merge and no operator. Raises BrokenFile when two branches have one
    processor.
    """
    begun: list[str] = []
    for (part, shared), group in groupby(ops, key=lambda op: (op.part, op.branch < 0)):
        if part in begun[:-1]:
            raise BrokenFile(
                f"part {part} starts a second time, {path}, the rows of a configuration must be"
                " those of one network"
            )
        if part not in begun:
            begun.append(part)
        branches: list[OpListBranch] = []
        for _, run in groupby(group, key=lambda op: op.branch):
            branch_ops = [op for op in run if op.kind != "concat" or op.branch >= 0]
            if branch_ops:
                branches.append(op_list_branch(branch_ops, path, soc))
        names = [branch.processor for branch in branches]
        if not shared and len(set(names)) != len(names):
            raise BrokenFile(
                f"branches of {part} run on {', '.join(names)}, {path}, each needs a processor of"
                " its own"
            )
        if branches:
            yield OpListSegment(part, tuple(branches))


def op_list_branch(ops: list[OpListRow], path: Path, soc: Soc) -> OpListBranch:
    """Return consecutive rows as a branch. Raises BrokenFile when their processors differ."""
    for op in ops:
        if op.device != ops[0].device:
            raise BrokenFile(
                f"device {op.device} in a branch on {ops[0].device}, {path} line {op.line}, one"
                " branch runs on one processor"
            )
    kernels = tuple(fuse_rows(ops, soc.rules(ops[0].device)))
    elements_in = ops[0].cin * ops[0].hw_in ** 2
    elements_out = ops[-1].cout * ops[-1].hw_out ** 2
    return OpListBranch(ops[0].device, kernels, elements_in, elements_out)


def fuse_rows(ops: list[OpListRow], rules: FusionRules) -> Iterator[Kernel]:
    """Yield kernels, sums fused behind the one before where the backend does so."""
    pending: Kernel | None = None
    for op in ops:
        if pending is not None and is_fused_sum(op, pending, rules):
            read_elements = pending.read_elements + pending.write_elements
            nodes = (*pending.nodes, op.name)
            pending = replace(pending, read_elements=read_elements, nodes=nodes)
            continue
        if pending is not None:
            yield pending
        pending = kernel_of_row(op)
    if pending is not None:
        yield pending


def is_fused_sum(op: OpListRow, kernel: Kernel, rules: FusionRules) -> bool:
    """Return whether a row is a sum that the backend fuses behind a kernel."""
    size = op.cout * op.hw_out**2
    return op.kind == "add" and rules.fuses(kernel.kind, "add") and kernel.write_elements == size


def kernel_of_row(op: OpListRow) -> Kernel:
    """Return the kernel that a row describes."""
    kind = "gconv" if op.kind == "conv" and op.groups > 1 else KINDS[op.kind]
    read = op.cin * op.hw_in**2
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
        write_elements=op.cout * op.hw_out**2,
        weight_elements=op.params,
        nodes=(op.name,),
    )
