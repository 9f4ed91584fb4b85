"""Plan <-> parameters: one flat, fixed list of choices that every sampler understands.

For every candidate meeting point, whether branches meet there; for every candidate start, which
processors run behind it; for each of them a share of the depth and a share of the width. Choices
that a plan does not use (what runs behind a cut where nothing meets) stand idle, so the list is the
same for every trial; where there is no work to share out, the first of the processors runs alone.
Depths, widths and meeting points are those of the exact search: both cover one space.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from math import ceil
from typing import TYPE_CHECKING

from nnstretch.errors import BadPlan
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch.lowering.channel_allocation import CHANNEL_MULTIPLE
from nnstretch.stretch.lowering.depth_scaling import local_stages
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.lowering.section import nearest_width
from nnstretch.stretch.lowering.width_scaling import round_channels
from nnstretch.stretch.search.constraints import SegmentLimits
from nnstretch.structure.cuts import INPUT, Cut

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

ParameterValue = bool | int | float | str
LAST_PROCESSOR_PARAMETER = "on the last"
"""Which processor runs from the last meeting point to the output, where nothing can branch."""


def meeting_parameter(cut: str) -> str:
    """Return the parameter's name of a meeting point."""
    return f"meet at {cut}"


def processors_parameter(start: str) -> str:
    """Return the parameter's name of a segment's processors."""
    return f"on {start}"


def depth_parameter(start: str, processor: str) -> str:
    """Return the parameter's name of a branch's depth."""
    return f"depth {start} {processor}"


def width_parameter(start: str, processor: str) -> str:
    """Return the parameter's name of a branch's width."""
    return f"width {start} {processor}"


@dataclass(frozen=True)
class PlanSpace:
    """Every plan that a study may propose for one network on some processors of one chip."""

    analysis: NetworkAnalysis
    processors: tuple[str, ...]
    limits: SegmentLimits
    soc: str | None = None
    width_steps: int | None = None
    """Widths a branch may have at most; None tries every multiple of the hardware's granule."""
    width_cache: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict, compare=False)

    @cached_property
    def meeting_points(self) -> tuple[Cut, ...]:
        """Return candidate meeting points in order; the output is the last."""
        return self.analysis.block_ends

    @cached_property
    def branch_starts(self) -> tuple[Cut, ...]:
        """Return cuts behind which something can branch: all but the last before the output."""
        return (
            (Cut(INPUT, self.analysis.graph.inputs[0].name, -1), *self.meeting_points[:-2])
            if len(self.meeting_points) > 1
            else ()
        )

    @cached_property
    def processor_sets(self) -> tuple[str, ...]:
        """Return every set of processors, spelt `cpu+dsp`, small ones first."""
        sizes = range(1, len(self.processors) + 1)
        return tuple(
            "+".join(processors)
            for size in sizes
            for processors in combinations(self.processors, size)
        )

    @cached_property
    def distributions(self) -> dict[str, BaseDistribution]:
        """Return every parameter by name, the same for every trial."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution

        distributions_: dict[str, BaseDistribution] = {
            meeting_parameter(cut.name): CategoricalDistribution((False, True))
            for cut in self.meeting_points[:-1]
        }
        for start in self.branch_starts:
            distributions_[processors_parameter(start.name)] = CategoricalDistribution(
                self.processor_sets
            )
            for processor in self.processors:
                distributions_[depth_parameter(start.name, processor)] = FloatDistribution(0.0, 1.0)
                distributions_[width_parameter(start.name, processor)] = FloatDistribution(0.0, 1.0)
        distributions_[LAST_PROCESSOR_PARAMETER] = CategoricalDistribution(self.processors)
        return distributions_

    @cached_property
    def unused_defaults(self) -> dict[str, ParameterValue]:
        """Return values for parameters that a plan does not use.

        The original, unbranched, on the first processor.
        """
        defaults: dict[str, ParameterValue] = {
            meeting_parameter(cut.name): False for cut in self.meeting_points[:-1]
        }
        for start in self.branch_starts:
            defaults[processors_parameter(start.name)] = self.processor_sets[0]
            for processor in self.processors:
                defaults[depth_parameter(start.name, processor)] = 1.0
                defaults[width_parameter(start.name, processor)] = 1.0
        return defaults | {LAST_PROCESSOR_PARAMETER: self.processors[0]}

    def depths(self, start: Cut, end: Cut) -> range:
        """Return blocks that a branch may keep; the original's depth is the last."""
        full = self.analysis.depth(start, end)
        fewest = max(1, len(local_stages(self.analysis.stages, start, end)))
        return range(max(fewest, ceil(self.limits.min_depth * full - 1e-9)), full + 1)

    def widths(self, start: Cut, end: Cut) -> tuple[int, ...]:
        """Return channels that a branch may end with: multiples of the granule that can be built.

        The original's own width is the last.
        """
        key = (start.position, end.position)
        if key not in self.width_cache:
            section = self.analysis.section(start, end, None)
            full, least = section.width_out, self.limits.min_width * section.width_out
            step = CHANNEL_MULTIPLE if full >= 2 * CHANNEL_MULTIPLE else 1
            wanted = list(range(max(step, ceil(least / step) * step), full, step))
            if self.width_steps is not None and len(wanted) >= self.width_steps:
                shares = [
                    self.limits.min_width + (1 - self.limits.min_width) * i / (self.width_steps - 1)
                    for i in range(self.width_steps - 1)
                ]
                wanted = [round_channels(full * share) for share in shares]
            possible = {nearest_width(section, section.width_in, width) for width in wanted}
            self.width_cache[key] = (*sorted(w for w in possible if least - 1e-9 <= w < full), full)
        return self.width_cache[key]

    def find_cut(self, name: str) -> Cut:
        """Return the cut of that name. Raises BadPlan when the study does not meet there."""
        for cut in (*self.branch_starts, *self.meeting_points):
            if cut.name == name:
                return cut
        raise BadPlan(
            f"plan meets at {name!r}, {self.analysis.graph.name}, a study meets at"
            f" {', '.join(c.name for c in self.meeting_points)}"
        )


def plan_from_parameters(space: PlanSpace, parameters: Mapping[str, ParameterValue]) -> Plan:
    """Return the plan that parameters spell.

    It may still break a limit, or have a branch that cannot be built: see evaluate.py.
    """
    ends = [cut for cut in space.meeting_points[:-1] if parameters[meeting_parameter(cut.name)]] + [
        space.meeting_points[-1]
    ]
    segments: list[Segment] = []
    for start, end in zip([Cut(INPUT, "", -1), *ends], ends, strict=False):
        branches = branches_from_parameters(space, start, end, parameters)
        before = segments[-1] if segments else None
        if before and not before.branched and before.branches == branches:
            segments[-1] = Segment(before.start, end.name, branches)
        else:
            segments.append(Segment(start.name, end.name, branches))
    graph = space.analysis.graph
    return Plan(graph.name, graph.inputs[0].spec.shape, tuple(segments), space.soc)


def branches_from_parameters(
    space: PlanSpace, start: Cut, end: Cut, parameters: Mapping[str, ParameterValue]
) -> tuple[Branch, ...]:
    """Return the branches that parameters describe."""
    if end == space.meeting_points[-1]:
        return (Branch(str(parameters[LAST_PROCESSOR_PARAMETER])),)
    processors = str(parameters[processors_parameter(start.name)]).split("+")
    start = space.find_cut(start.name)
    if len(processors) == 1 or not space.analysis.section(start, end, None).graph.macs:
        return (Branch(processors[0]),)
    depths, widths = space.depths(start, end), space.widths(start, end)
    return tuple(
        Branch(
            processor,
            depths[
                index_from_share(parameters[depth_parameter(start.name, processor)], len(depths))
            ],
            widths[
                index_from_share(parameters[width_parameter(start.name, processor)], len(widths))
            ],
        )
        for processor in processors
    )


def index_from_share(share: ParameterValue, count: int) -> int:
    """Return which of `count` choices a share from 0 to 1 means."""
    return round(float(share) * (count - 1))


def share_from_index(index: int, count: int) -> float:
    """Return the place of an index among `count`, from 0 to 1."""
    return index / (count - 1) if count > 1 else 1.0


def parameters_from_plan(space: PlanSpace, plan: Plan) -> dict[str, ParameterValue]:
    """Return the parameters that spell a plan: `plan_of` gives the same plan back.

    Raises BadPlan for a plan outside the space.
    """
    parameters = dict(space.unused_defaults)
    for segment in plan.segments:
        where = f"segment {segment.start} -> {segment.end}"
        if segment.end != plan.segments[-1].end:
            parameters[meeting_parameter(space.find_cut(segment.end).name)] = True
        if segment.merge != "concat":
            raise BadPlan(f"{where} merges by {segment.merge}, a study tries concat only")
        if segment.branched:
            parameters |= segment_parameters(space, segment, where)
        elif (branch := segment.branches[0]) != Branch(branch.processor):
            raise BadPlan(
                f"{where} is {branch} alone, a study leaves what does not branch as it is"
            )
        else:
            parameters[
                (
                    LAST_PROCESSOR_PARAMETER
                    if segment is plan.segments[-1]
                    else processors_parameter(segment.start)
                )
            ] = branch.processor
    known = {*space.processors} >= {*plan.processors}
    if not known or plan_from_parameters(space, parameters).segments != plan.segments:
        raise BadPlan(
            f"plan of {plan.model} is outside the study's space of {', '.join(space.processors)}"
        )
    return parameters


def segment_parameters(space: PlanSpace, segment: Segment, where: str) -> dict[str, ParameterValue]:
    """Return the parameters of one branched segment.

    Raises BadPlan when a branch lies outside the study's space.
    """
    start, end = space.find_cut(segment.start), space.find_cut(segment.end)
    depths, widths = space.depths(start, end), space.widths(start, end)
    parameters: dict[str, ParameterValue] = {
        processors_parameter(segment.start): "+".join(
            branch.processor for branch in segment.branches
        )
    }
    for branch in segment.branches:
        if (
            not isinstance(branch.depth, int)
            or branch.depth not in depths
            or branch.width not in widths
        ):
            raise BadPlan(
                f"{branch} is outside the study's space, {where}, depth {depths[0]} to"
                f" {depths[-1]}, width {widths[0]} to {widths[-1]}"
            )
        parameters[depth_parameter(segment.start, branch.processor)] = share_from_index(
            depths.index(branch.depth), len(depths)
        )
        parameters[width_parameter(segment.start, branch.processor)] = share_from_index(
            widths.index(branch.width), len(widths)
        )
    return parameters
