"""A whole branch as it is scheduled on an accelerator, beside the sum of its kernels."""

from __future__ import annotations

from dataclasses import dataclass, field

from nnstretch.accelerate.chip_graph import chip_graph
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.policies import ClusterSchedule, ScheduleOptions, schedule_cluster
from nnstretch.accelerate.pricing.deployed_graph import deployed_graph
from nnstretch.errors import BadPlan
from nnstretch.graph import Graph

TRIED = (
    ScheduleOptions("graphturbo"),
    ScheduleOptions("graphturbo", parts_margin=3.0),
    ScheduleOptions("lb", "layers"),
)
"""Schedules of a branch of which the fastest counts: groups in parts, more of them, no groups."""


@dataclass
class BranchScheduler:
    """Schedules of branches on one machine, equal ones once."""

    rates: ChipRates
    known: dict[str, ClusterSchedule] = field(default_factory=dict)

    def schedule(self, graph: Graph) -> ClusterSchedule:
        """Return the fastest schedule of a branch.

        Raises BadPlan where a layer does not fit, UnsupportedOp for an operator without a rule.
        """
        key = str(graph)
        if key not in self.known:
            self.known[key] = fastest_schedule(graph, self.rates)
        return self.known[key]


def fastest_schedule(graph: Graph, rates: ChipRates) -> ClusterSchedule:
    """Return the fastest of the schedules that are tried. Raises BadPlan where none fits."""
    chip = chip_graph(deployed_graph(graph), rates.element_type)
    best: ClusterSchedule | None = None
    refusal: BadPlan | None = None
    for options in TRIED:
        try:
            schedule = schedule_cluster(chip, rates, options)
        except BadPlan as error:
            refusal = refusal or error
            continue
        if best is None or schedule.latency_us < best.latency_us:
            best = schedule
    if best is None:
        assert refusal is not None
        raise refusal
    return best
