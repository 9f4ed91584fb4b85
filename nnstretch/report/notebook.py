"""What a notebook shows of the project's nouns: one small table each, escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from nnstretch.graph import Graph
from nnstretch.plan import Plan
from nnstretch.report.format_numbers import amount, plain_ms
from nnstretch.report.html import Markup, table
from nnstretch.soc import Link, Soc
from nnstretch.trace import Trace
from nnstretch.trial import Trial

ROWS = 30
"""Rows of a table; the caption says how many there are."""
LETTERS = 80
"""Letters of a cell."""


def graph_html(graph: Graph) -> Markup:
    """Return the operators of a graph, with shapes and work."""
    rows: list[tuple[object, ...]] = []
    for node in graph.nodes[:ROWS]:
        shapes = ", ".join(map(str, node.outputs[:4]))
        rows.append((node.name, node.op, ", ".join(node.inputs[:4]), shapes, amount(node.macs)))
    what = f"graph {graph.name}: {len(graph.nodes)} operators, {amount(graph.macs)} MACs"
    return small_table(what, ("name", "operator", "reads", "shape", "MACs"), rows, len(graph.nodes))


def plan_html(plan: Plan) -> Markup:
    """Return the segments of a plan with their branches."""
    rows: list[tuple[object, ...]] = []
    for segment in plan.segments[:ROWS]:
        merge = segment.merge if segment.branched else ""
        branches = " | ".join(map(str, segment.branches))
        rows.append((segment.start, segment.end, branches, merge))
    heads = ("from", "to", "branches", "merge")
    return small_table(f"plan {plan.model}", heads, rows, len(plan.segments))


def trial_html(trial: Trial) -> Markup:
    """Return the segments of a plan with their predicted cost, ms."""
    what = f"trial of {trial.plan.model}: {plain_ms(trial.latency_us / 1000)} ms"
    return _segment_costs(what, trial)


def scored_plan_html(scored: Any) -> Markup:
    """Return the segments of a `ScoredPlan`, its error and a network of equal MACs beside it."""
    trial, equal = scored.trial, scored.iso_mac
    times = [plain_ms(us / 1000) for us in (trial.latency_us, scored.error_us, equal.latency_us)]
    what = f"{times[0]} ± {times[1]} ms; of equal MACs on {equal.processor} alone {times[2]} ms"
    return _segment_costs(f"{what}: plan of {trial.plan.model}", trial)


def _segment_costs(what: str, trial: Trial) -> Markup:
    rows: list[tuple[object, ...]] = []
    for segment in trial.segments[:ROWS]:
        branches: list[str] = []
        for branch in segment.branches:
            branches.append(f"{branch.processor} {plain_ms(branch.latency_us / 1000)}")
        times_us = (segment.latency_us, segment.sync_us, segment.merge_us, segment.original_us)
        times = [plain_ms(us / 1000) for us in times_us]
        rows.append((segment.start, segment.end, " | ".join(branches), *times))
    heads = ("from", "to", "branches, ms", "segment, ms", "sync, ms", "merge, ms", "original, ms")
    return small_table(what, heads, rows, len(trial.segments))


def soc_html(soc: Soc) -> Markup:
    """Return the processors of a chip with what they cost beside their kernels."""
    rows: list[tuple[object, ...]] = []
    for processor in soc.processors[:ROWS]:
        copies = [_link_text(link) for link in (processor.copy_in, processor.copy_out)]
        memory = "" if processor.memory_bytes is None else amount(processor.memory_bytes)
        depth, sync_us = processor.queue_depth, f"{processor.sync_us:.3g}"
        rows.append((processor.name, processor.kind, depth, *copies, sync_us, memory))
    heads = ("processor", "kind", "queue", "copy in, us", "copy out, us", "sync, us", "bytes")
    known = "calibrated" if soc.calibrated else "not calibrated"
    return small_table(f"chip {soc.name}, {soc.dtype}, {known}", heads, rows, len(soc.processors))


def _link_text(link: Link) -> str:
    return f"{link.fixed_us:.3g} + {link.us_per_kib:.3g}/KiB"


def trace_html(trace: Trace) -> Markup:
    """Return what ran on each processor, and for how long, ms."""
    rows: list[tuple[object, ...]] = []
    makespan_us = trace.makespan_us
    for processor in trace.processors[:ROWS]:
        tasks = sum(span.processor == processor for span in trace.spans)
        busy_us = trace.busy_us(processor)
        share = f"{busy_us / makespan_us:.1%}" if makespan_us else ""
        rows.append((processor, tasks, plain_ms(busy_us / 1000), share))
    what = f"trace: {len(trace.spans)} tasks in {plain_ms(makespan_us / 1000)} ms"
    return small_table(
        what, ("processor", "tasks", "busy, ms", "share"), rows, len(trace.processors)
    )


def search_html(result: Any) -> Markup:
    """Return the plans of a `SearchResult` beside the original on its fastest processor, ms."""
    rows: list[tuple[object, ...]] = []
    for number, scored in enumerate(result.plans[:ROWS], 1):
        trial = scored.trial
        times = (plain_ms(trial.latency_us / 1000), plain_ms(scored.error_us / 1000))
        rows.append((number, " ".join(trial.plan.processors), *times, amount(trial.macs)))
    heads = ("plan", "processors", "predicted, ms", "error, ms", "MACs")
    what = "search without a plan"
    if result.plans:
        proof = "proven optimal" if result.optimal else f"at most {result.gap:.1%} from optimal"
        original_us = result.original_us[result.fastest]
        what = f"search of {result.plans[0].trial.plan.model}: {proof}; original on"
        what += f" {result.fastest} {plain_ms(original_us / 1000)} ms"
    return small_table(what, heads, rows, len(result.plans))


def small_table(
    caption: str, heads: Sequence[str], rows: Iterable[Iterable[object]], count: int
) -> Markup:
    """Return a table whose caption and cells are short; `count`: rows there are in all."""
    cells = [[shortened(cell) for cell in row] for row in rows]
    more = f" (first {ROWS} of {count})" if count > ROWS else ""
    return table(shortened(caption) + more, heads, cells, text_columns=frozenset(range(len(heads))))


def shortened(cell: object) -> str:
    """Return the text of a cell, its end left out where it is long."""
    text = str(cell)
    return text if len(text) <= LETTERS else f"{text[:LETTERS]}…"
