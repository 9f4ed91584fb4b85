"""Items of a pipeline in a trace: stages and rows of tasks, producers and consumers, delays."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from nnstretch.bundle.manifest import Manifest
from nnstretch.bundle.pipeline_view import stage_inputs, stage_outputs
from nnstretch.pipeline import PipelineSpec
from nnstretch.schedule.pipeline_graph import (
    IN,
    OUT,
    StageGraph,
    dependencies,
    stage_graph,
    step_name,
)
from nnstretch.task import Task, task_name
from nnstretch.trace import Span, Trace


def stage_by_name(manifest: Manifest) -> dict[str, str]:
    """Return the stage of every sub-graph, copy and stage, in the order of stages.

    Nothing where there is no pipeline.
    """
    stages = () if manifest.pipeline is None else manifest.pipeline.stages
    copies: dict[str, str] = {}
    work: dict[str, str] = {}
    for stage in stages:
        copies |= {step_name(stage.name, part): stage.name for part in (IN, OUT)}
        work |= dict.fromkeys((stage.name, *stage.subgraphs), stage.name)
    return copies | work


def rows_of_stages(
    works: Sequence[tuple[str, str]], stage_of: Mapping[str, str], python_names: frozenset[str]
) -> dict[tuple[str, str], str]:
    """Return the row of every (sub-graph or stage, processor): its processor.

    In a pipeline, where several stages may share one, its worker; Python stages and their replicas
    (`python_names`) are processors of their own name.
    """
    if not stage_of:
        return {work: work[1] for work in works}
    order = list(dict.fromkeys(stage_of.values()))

    def place(work: tuple[str, str]) -> tuple[int, str]:
        name, processor = work
        return order.index(stage_of.get(name, name)), processor

    rows: dict[tuple[str, str], str] = {}
    for name, processor in sorted(dict.fromkeys(works), key=place):
        worker = f"{stage_of.get(name, name)} on {processor}"
        rows[name, processor] = processor if processor in python_names else worker
    return rows


def python_workers(manifest: Manifest) -> frozenset[str]:
    """Return the names of Python stages and of their replicas."""
    stages = () if manifest.pipeline is None else manifest.pipeline.stages
    called = ((stage.name, *stage.replica_names) for stage in stages if stage.call)
    return frozenset(chain.from_iterable(called))


def item_args(task: Task, stage_of: Mapping[str, str]) -> dict[str, Any]:
    """Return stage and item, for whoever looks for them."""
    return (
        {"stage": stage_of.get(task.subgraph, task.subgraph), "item": task.request}
        if stage_of
        else {}
    )


def stage_args(manifest: Manifest) -> dict[str, Any]:
    """Return stages in order, each with the stages whose outputs it reads."""
    if manifest.pipeline is None:
        return {}
    nodes = stage_graph(manifest.pipeline, manifest)
    rows: list[dict[str, Any]] = []
    for node in nodes:
        rows.append({"stage": node.name, "after": [nodes[n].name for n in node.feeders]})
    return {"pipeline": rows}


def producer_consumer_spans(trace: Trace, manifest: Manifest) -> Iterator[tuple[Span, Span]]:
    """Yield every two spans of one item of which the second reads what the first wrote, items in
    order.
    """
    ends = _ends(manifest, frozenset(span.task.subgraph for span in trace.spans))
    items: dict[int, list[Span]] = defaultdict(list)
    for span in sorted(trace.spans, key=lambda s: (s.start_us, s.end_us)):
        items[span.task.request].append(span)
    for item in sorted(items):
        maker: dict[str, Span] = {}
        for span in items[item]:
            maker |= dict.fromkeys(ends[span.task.subgraph][1], span)
        for span in items[item]:
            read = (maker.get(name) for name in ends[span.task.subgraph][0])
            for producer in dict.fromkeys(read):
                if producer is not None and producer is not span:
                    yield producer, span


def _ends(
    manifest: Manifest, ran: frozenset[str]
) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return what every sub-graph and every stage reads and writes.

    Where its copies `ran`, they do that, and it has to do with them alone.
    """
    assert manifest.pipeline is not None
    ends: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
    for stage in manifest.pipeline.stages:
        ends[stage.name] = stage_inputs(stage, manifest), stage_outputs(stage, manifest)
    for sub in manifest.subgraphs:
        ends[sub.name] = sub.input_names, sub.output_names
    for stage in manifest.pipeline.stages:
        into, out = (step_name(stage.name, part) for part in (IN, OUT))
        if into in ran or out in ran:
            ends |= {
                into: (stage_inputs(stage, manifest), (into,)),
                out: ((out,), stage_outputs(stage, manifest)),
            }
            ends |= dict.fromkeys((stage.name, *stage.subgraphs), ((into,), (out,)))
    return ends


def spans_by_step(
    trace: Trace, pipeline: PipelineSpec, stage_graph: StageGraph
) -> dict[str, list[Span]]:
    """Return the spans of each step, one for each item, in the order of items.

    A span reaches from the first of its sub-graphs' starts to the last's end.
    """
    home: dict[str, str] = {}
    for stage in pipeline.stages:
        home |= dict.fromkeys(stage.subgraphs or (stage.name,), stage.name)
    by_step: dict[str, dict[int, Span]] = {node.name: {} for node in stage_graph}
    for span in trace.spans:
        item, step = span.task.request, home.get(span.task.subgraph, span.task.subgraph)
        known = by_step[step].get(item, span)
        start_us, end_us = min(known.start_us, span.start_us), max(known.end_us, span.end_us)
        task = Task(task_name(step, item), step, request=item)
        by_step[step][item] = Span(start_us, end_us, task, span.processor)
    return {name: [spans[item] for item in sorted(spans)] for name, spans in by_step.items()}


def start_delays_us(stage_graph: StageGraph, spans: Mapping[str, list[Span]]) -> list[float]:
    """Return how long after it could have begun each step began each item.

    `spans`: by step in the order of items (`spans_by_step`), all on one clock. Where one of those
    that it waited for is not known, the step is left out.
    """
    delays_us: list[float] = []
    known = {name: {span.task.request: span for span in of_step} for name, of_step in spans.items()}
    for number, node in enumerate(stage_graph):
        for item, span in known[node.name].items():
            before: list[Span | None] = []
            for place, earlier in dependencies(stage_graph, number, item):
                if earlier >= 0:
                    before.append(known[stage_graph[place].name].get(earlier))
            ends_us = [earlier_span.end_us for earlier_span in before if earlier_span is not None]
            if before and len(ends_us) == len(before):
                delays_us.append(span.start_us - max(ends_us))
    return delays_us
