"""Plan <-> parameters: one flat, fixed list of choices that every sampler understands.

For every candidate meeting point, whether branches meet there; for every candidate start, which
processors run behind it; for each of them a share of the depth and a share of the width. The list
is the same for every trial, so a plan may leave parameters unused. Where there is no work to share
out, the first of the processors runs alone. Depths, widths and meeting points are those of the
exact search; merges only concatenate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
"""Parameter of the processor behind the last meeting point, where nothing can branch."""


def meeting_parameter(cut: str) -> str:
    """Return the name of the parameter: whether branches meet at a cut."""
    return f"meet at {cut}"


def processors_parameter(start: str) -> str:
    """Return the name of the parameter: processors of a segment."""
    return f"on {start}"


def depth_parameter(start: str, processor: str) -> str:
    """Return the name of the parameter: depth of a branch."""
    return f"depth {start} {processor}"


def width_parameter(start: str, processor: str) -> str:
    """Return the name of the parameter: width of a branch."""
    return f"width {start} {processor}"


@dataclass(frozen=True)
class PlanSpace:
    """Plans that a study may propose for one network on some processors of one chip."""

    analysis: NetworkAnalysis
    processors: tuple[str, ...]
    limits: SegmentLimits
    soc: str | None = None
    width_steps: int | None = None
    """Largest number of widths of a branch; None tries every multiple of the channel multiple."""
    width_cache: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict, compare=False)

    @cached_property
    def meeting_points(self) -> tuple[Cut, ...]:
        """Return candidate meeting points in order; the output is the last."""
        return self.analysis.block_ends

    @cached_property
    def branch_starts(self) -> tuple[Cut, ...]:
        """Return cuts behind which a segment can branch: all but the last before the output."""
        if len(self.meeting_points) <= 1:
            return ()
        return (Cut(INPUT, self.analysis.graph.inputs[0].name, -1), *self.meeting_points[:-2])

    @cached_property
    def processor_sets(self) -> tuple[str, ...]:
        """Return every set of processors, spelt `cpu+dsp`, small ones first."""
        names: list[str] = []
        for size in range(1, len(self.processors) + 1):
            names += ["+".join(processors) for processors in combinations(self.processors, size)]
        return tuple(names)

    @cached_property
    def distributions(self) -> dict[str, BaseDistribution]:
        """Return every parameter by name, the same for every trial."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution

        choices: dict[str, BaseDistribution] = {}
        for cut in self.meeting_points[:-1]:
            choices[meeting_parameter(cut.name)] = CategoricalDistribution((False, True))
        for start in self.branch_starts:
            name = processors_parameter(start.name)
            choices[name] = CategoricalDistribution(self.processor_sets)
            for processor in self.processors:
                choices[depth_parameter(start.name, processor)] = FloatDistribution(0.0, 1.0)
                choices[width_parameter(start.name, processor)] = FloatDistribution(0.0, 1.0)
        choices[LAST_PROCESSOR_PARAMETER] = CategoricalDistribution(self.processors)
        return choices

    @cached_property
    def unused_defaults(self) -> dict[str, ParameterValue]:
        """Return values of unused parameters: the original on the first processor."""
        defaults: dict[str, ParameterValue] = {}
        for cut in self.meeting_points[:-1]:
            defaults[meeting_parameter(cut.name)] = False
        for start in self.branch_starts:
            defaults[processors_parameter(start.name)] = self.processor_sets[0]
            for processor in self.processors:
                defaults[depth_parameter(start.name, processor)] = 1.0
                defaults[width_parameter(start.name, processor)] = 1.0
        return defaults | {LAST_PROCESSOR_PARAMETER: self.processors[0]}

    def depths(self, start: Cut, end: Cut) -> range:
        """Return the depths of a branch in blocks; the original's is the last."""
        full = self.analysis.depth(start, end)
        fewest = max(1, len(local_stages(self.analysis.stages, start, end)))
        return range(max(fewest, ceil(self.limits.min_depth * full - 1e-9)), full + 1)

    def widths(self, start: Cut, end: Cut) -> tuple[int, ...]:
        """Return the buildable output widths of a branch; the original's is the last."""
        key = (start.position, end.position)
        if key not in self.width_cache:
            self.width_cache[key] = self.buildable_widths(start, end)
        return self.width_cache[key]

    def buildable_widths(self, start: Cut, end: Cut) -> tuple[int, ...]:
        """Compute the widths that `widths` keeps."""
        section = self.analysis.section(start, end, None)
        full = section.width_out
        least = self.limits.min_width * full
        wanted = self.wanted_widths(full)
        possible = {nearest_width(section, section.width_in, width) for width in wanted}
        return (*sorted(width for width in possible if least - 1e-9 <= width < full), full)

    def wanted_widths(self, full: int) -> list[int]:
        """Return multiples of the channel multiple below `full`, at most `width_steps` of them."""
        min_width = self.limits.min_width
        step = CHANNEL_MULTIPLE if full >= 2 * CHANNEL_MULTIPLE else 1
        widths = list(range(max(step, ceil(min_width * full / step) * step), full, step))
        if self.width_steps is None or len(widths) < self.width_steps:
            return widths
        gaps = self.width_steps - 1
        shares = [min_width + (1 - min_width) * i / gaps for i in range(gaps)]
        return [round_channels(full * share) for share in shares]

    def find_cut(self, name: str) -> Cut:
        """Return the cut of a name. Raises BadPlan when no branches may meet there."""
        for cut in (*self.branch_starts, *self.meeting_points):
            if cut.name == name:
                return cut
        raise BadPlan(
            f"plan meets at {name!r}, {self.analysis.graph.name}, a study meets at"
            f" {', '.join(c.name for c in self.meeting_points)}"
        )


def plan_from_parameters(space: PlanSpace, parameters: Mapping[str, ParameterValue]) -> Plan:
    """Return the plan of parameters, which may break limits or be impossible to build."""
    inner = space.meeting_points[:-1]
    ends = [cut for cut in inner if parameters[meeting_parameter(cut.name)]]
    ends.append(space.meeting_points[-1])
    starts = [Cut(INPUT, "", -1), *ends[:-1]]
    segments: list[Segment] = []
    for start, end in zip(starts, ends, strict=True):
        branches = branches_from_parameters(space, start, end, parameters)
        before = segments[-1] if segments else None
        if before and not before.branched and before.branches == branches:
            segments[-1] = Segment(before.start, end.name, branches)
        else:
            segments.append(Segment(start.name, end.name, branches))
    graph = space.analysis.graph
    spec = graph.inputs[0].spec
    return Plan(graph.name, spec.shape, tuple(segments), space.soc, spec.unusual_dtype)


def branches_from_parameters(
    space: PlanSpace, start: Cut, end: Cut, parameters: Mapping[str, ParameterValue]
) -> tuple[Branch, ...]:
    """Return the branches of a segment."""
    if end == space.meeting_points[-1]:
        return (Branch(str(parameters[LAST_PROCESSOR_PARAMETER])),)
    processors = str(parameters[processors_parameter(start.name)]).split("+")
    start = space.find_cut(start.name)
    if len(processors) == 1 or not space.analysis.section(start, end, None).graph.macs:
        return (Branch(processors[0]),)
    depths = space.depths(start, end)
    widths = space.widths(start, end)
    branches: list[Branch] = []
    for processor in processors:
        depth = choice_at(parameters[depth_parameter(start.name, processor)], depths)
        width = choice_at(parameters[width_parameter(start.name, processor)], widths)
        branches.append(Branch(processor, depth, width))
    return tuple(branches)


def choice_at(share: ParameterValue, choices: Sequence[int]) -> int:
    """Return the choice at a share, from 0 (the first) to 1 (the last)."""
    return choices[round(float(share) * (len(choices) - 1))]


def share_of_choice(choice: object, choices: Sequence[int]) -> float:
    """Return the share of a choice, from 0 (the first) to 1 (the last)."""
    return choices.index(choice) / (len(choices) - 1) if len(choices) > 1 else 1.0


def parameters_from_plan(space: PlanSpace, plan: Plan) -> dict[str, ParameterValue]:
    """Return the parameters of a plan. Raises BadPlan for a plan outside the space."""
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
        elif segment is plan.segments[-1]:
            parameters[LAST_PROCESSOR_PARAMETER] = branch.processor
        else:
            parameters[processors_parameter(segment.start)] = branch.processor
    known = {*space.processors} >= {*plan.processors}
    if not known or plan_from_parameters(space, parameters).segments != plan.segments:
        raise BadPlan(
            f"plan of {plan.model} is outside the study's space of {', '.join(space.processors)}"
        )
    return parameters


def segment_parameters(space: PlanSpace, segment: Segment, where: str) -> dict[str, ParameterValue]:
    """Return the parameters of a branched segment. Raises BadPlan outside the study's space."""
    start = space.find_cut(segment.start)
    end = space.find_cut(segment.end)
    depths = space.depths(start, end)
    widths = space.widths(start, end)
    processors = "+".join(branch.processor for branch in segment.branches)
    parameters: dict[str, ParameterValue] = {processors_parameter(segment.start): processors}
    for branch in segment.branches:
        is_known_depth = isinstance(branch.depth, int) and branch.depth in depths
        if not is_known_depth or branch.width not in widths:
            raise BadPlan(
                f"{branch} is outside the study's space, {where}, depth {depths[0]} to"
                f" {depths[-1]}, width {widths[0]} to {widths[-1]}"
            )
        depth_name = depth_parameter(segment.start, branch.processor)
        width_name = width_parameter(segment.start, branch.processor)
        parameters[depth_name] = share_of_choice(branch.depth, depths)
        parameters[width_name] = share_of_choice(branch.width, widths)
    return parameters
