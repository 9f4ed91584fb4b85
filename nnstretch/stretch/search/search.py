"""The proven best plan of the whole space.

Segments touch only through the merged width, so dynamic programming over (cut, merged width) is
exact. Where MACs or parameters of the whole network are limited, labels carry them along.
Lagrangian lower bounds tell which of the millions of combinations need not be looked at, and in the
end what no plan can beat.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

from nnstretch._interpreter import PausedCollector
from nnstretch.errors import BadInput, UnsupportedOp
from nnstretch.files.checked import checked
from nnstretch.graph import Graph
from nnstretch.soc import Soc
from nnstretch.stretch.cost.cost_model import CostModel, uncovered_kernels
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.search.branch_and_bound import Progress
from nnstretch.stretch.search.constraints import NetworkLimits, SegmentLimits
from nnstretch.stretch.search.early_stop import until
from nnstretch.stretch.search.feasibility import nowhere_to_branch
from nnstretch.stretch.search.search_problem import SearchProblem
from nnstretch.stretch.search.search_result import SearchResult
from nnstretch.stretch.search.space.cost_tables import CostTables
from nnstretch.stretch.search.space.search_space import SearchSpace
from nnstretch.structure.arguments import shared_weights
from nnstretch.structure.cuts import no_cut_reason

MERGES = ("concat", "project")
MAX_PARAMS = 1.5
"""Parameters of a plan over the original's, at most, where no other limit is asked for."""


@checked
def search(
    graph: Graph | NetworkAnalysis,
    soc: Soc,
    processors: Sequence[str] = ("cpu", "dsp"),
    limits: SegmentLimits | None = None,
    min_macs: float = 0.0,
    max_macs: float = math.inf,
    min_params: float = 0.0,
    top: int = 1,
    width_steps: int | None = None,
    progress: Progress | None = None,
    fallback: str | None = None,
    merges: Sequence[str] = MERGES,
    max_params: float | None = None,
    time_limit_s: float = math.inf,
    min_meetings: int = 0,
    gap: float = 0.0,
) -> SearchResult:
    """Search the fastest plan of a network on a chip, proven, and `top` - 1 others.

    The others differ from it in where or on what they branch. `min_macs`, `max_macs`, `min_params`,
    `max_params` are absolute counts; None allows 1.5 times the original's parameters.
    `min_meetings` is how often branches meet at least. The search ends where nothing can be faster
    by more than the share `gap`; an interrupt (KeyboardInterrupt) or `time_limit_s` ends it before
    with the best plan so far. Raises BadInput for arguments that contradict each other, NoPlan
    where no plan satisfies the limits or the search ends before one does, UnknownName for a
    processor the chip lacks, UnsupportedOp where a kernel was never measured and no `fallback`
    (`nearest`) is allowed.
    """
    began = time.perf_counter()
    check_settings(soc, processors, top, width_steps, merges)
    check_fallback(fallback)
    check_bounds(min_macs, max_macs, min_params, max_params)
    check_gap(gap)
    check_time_limit(time_limit_s)
    tell = until(began + time_limit_s, progress)
    with PausedCollector():
        analysis = graph if isinstance(graph, NetworkAnalysis) else NetworkAnalysis(graph)
        cost_model = CostModel(soc, fallback)
        check_cuts(analysis)
        check_covered(analysis, soc, processors, cost_model)
        allowed = limits or SegmentLimits(), width_steps, tuple(merges)
        space = SearchSpace(analysis, cost_model, tuple(processors), *allowed)
        check_meetings(space, min_meetings)
        max_params = most_params(analysis.graph, min_params, max_params)
        # What is at least less than nothing is no limit; minus infinity would make bounds NaN.
        least = max(0.0, min_macs), max_macs, max(0.0, min_params)
        limits_of_all = NetworkLimits(*least, min_meetings=min_meetings)
        problem = SearchProblem(CostTables(space), limits_of_all, tell, max_params, gap)
        result = problem.solve(top)
    return replace(result, search_s=time.perf_counter() - began)


def check_settings(
    soc: Soc, processors: Sequence[str], top: int, width_steps: int | None, merges: Sequence[str]
) -> None:
    """Check the arguments of a search. Raises BadInput when one is out of range."""
    for name in processors:
        soc.processor(name)
    if len(set(processors)) != len(processors) or not processors:
        names = ", ".join(processors) or "none"
        raise BadInput(f"processors are {names}, search on {soc.name}, name each once")
    if top < 1 or (width_steps is not None and width_steps < 2):
        raise BadInput(
            f"top is {top} and width_steps {width_steps}, search settings, they must be at least 1"
            " and 2"
        )
    if not merges or not set(merges) <= set(MERGES):
        names = ", ".join(merges) or "none"
        raise BadInput(f"merges are {names}, search settings, they are concat and project")


def check_fallback(fallback: str | None) -> None:
    """Check how kernels are priced that were never measured. Raises BadInput."""
    if fallback not in (None, "nearest"):
        raise BadInput(f"fallback is {fallback!r:.80}, search settings, it is nearest or None")


def check_bounds(
    min_macs: float, max_macs: float, min_params: float, max_params: float | None
) -> None:
    """Check the limits on MACs and parameters. Raises BadInput where nothing lies between them."""
    most_params = math.inf if max_params is None else max_params
    pairs = (("MACs", min_macs, max_macs), ("parameters", min_params, most_params))
    for name, least, most in pairs:
        if least > most or least == math.inf:
            raise BadInput(
                f"{name} cannot be at least {least:.4g} and at most {most:.4g}, search bounds"
            )


def most_params(graph: Graph, min_params: float, max_params: float | None) -> float:
    """Return how many parameters a plan may have.

    Raises BadInput where they are limited and layers share weights: a plan's are then no sum over
    its layers, as the search counts them.
    """
    shared = shared_weights(graph)
    if shared and (min_params > 0 or max_params is not None):
        raise BadInput(
            f"parameters are limited, search bounds, layers of {graph.name} share weights"
            f" ({shared[0]:.80}), so a plan's are no sum over its layers, limit MACs instead"
        )
    if max_params is not None:
        return max_params
    return usual_max_params(graph, min_params)


def usual_max_params(graph: Graph, min_params: float) -> float:
    """Return how many parameters a plan may have where no limit is asked for.

    As many as it likes where layers share weights: see `most_params`.
    """
    return math.inf if shared_weights(graph) else MAX_PARAMS * max(graph.params, min_params)


def check_gap(gap: float) -> None:
    """Check the gap at which a search may end. Raises BadInput where it is no share."""
    if not 0 <= gap < 1:
        raise BadInput(f"gap is {gap}, search settings, it must be at least 0 and below 1")


def check_time_limit(time_limit_s: float) -> None:
    """Check the time that a search may take. Raises BadInput where nothing can be done in it."""
    if not time_limit_s > 0:
        raise BadInput(f"time_limit_s is {time_limit_s}, search settings, it must be above 0")


def check_cuts(analysis: NetworkAnalysis) -> None:
    """Check that a network can be cut at all. Raises BadInput for one without a cut."""
    if not analysis.block_ends:
        graph = analysis.graph
        inputs, outputs = len(graph.inputs), len(graph.outputs)
        advice = ", MODEL#OUTPUT takes one" if inputs == 1 < outputs else ""
        raise BadInput(
            f"cannot search {graph.name}, {no_cut_reason(inputs, outputs)}, so there is nowhere for"
            f" branches to meet{advice}; partition and export take it"
        )


def check_meetings(space: SearchSpace, min_meetings: int) -> None:
    """Check how often branches shall meet. Raises BadInput where they never can so often."""
    cuts = space.last - 1 if space.processor_sets() else 0
    if not 0 <= min_meetings <= cuts:
        where = f"{space.analysis.graph.name} has {cuts} cuts where branches may meet"
        where = nowhere_to_branch(space) or where
        if min_meetings < 0:
            where = "it is a count from 0"
        raise BadInput(f"min_meetings is {min_meetings}, search bounds, {where}")


def check_covered(
    analysis: NetworkAnalysis, soc: Soc, processors: Sequence[str], cost_model: CostModel
) -> None:
    """Check that every kernel can be predicted. Raises UnsupportedOp naming those that cannot."""
    if missing := uncovered_kernels(analysis.graph, soc, processors, cost_model):
        named = ", ".join(f"{kernel.kind} {kernel.name}" for kernel in missing[:5])
        named += ", ..." if len(missing) > 5 else ""
        where = f"{analysis.graph.name} on {soc.name}"
        count = "1 kernel was" if len(missing) == 1 else f"{len(missing)} kernels were"
        advice = "allow fallback nearest"
        if cost_model.fallback is not None:
            advice = f"fallback {cost_model.fallback} has no price either"
        raise UnsupportedOp(f"{count} never measured ({named}), {where}, {advice}")
