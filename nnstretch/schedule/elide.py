"""Remove no-op tasks from a schedule, and put them back into its trace.

Successors of a removed task need its predecessors instead; nothing is enqueued for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import chain

from nnstretch.task import Task
from nnstretch.trace import Span, Trace


def without_noops(tasks: Iterable[Task], subgraphs: Collection[str]) -> tuple[Task, ...]:
    """Return the tasks without those of `subgraphs`, whose needs their successors take over.

    Tasks come after what they need.
    """
    tasks_kept: list[Task] = []
    behind: dict[str, frozenset[str]] = {}
    for task in tasks:
        needs = frozenset(chain.from_iterable(behind.get(need, (need,)) for need in task.needs))
        if task.subgraph in subgraphs:
            behind[task.name] = needs
        else:
            tasks_kept.append(task if needs == task.needs else replace(task, needs=needs))
    return tuple(tasks_kept)


def restore_noops(
    trace: Trace, tasks: Sequence[Task], subgraphs: Collection[str], over_us: float = 0.0
) -> Trace:
    """Return the trace of the tasks that `without_noops` kept, with the removed ones in it.

    Removed tasks have no length; each is on its processor, at the end of the last of its needs. One
    that no task needs and that ends last is at `over_us`, when the caller saw the end of the run.
    """
    if not subgraphs:
        return trace
    ends_us = {span.task.name: span.end_us for span in trace.spans}
    read = frozenset(chain.from_iterable(task.needs for task in tasks))
    latest_us = max(ends_us.values(), default=0.0)
    spans = list(trace.spans)
    for task in tasks:
        if task.subgraph in subgraphs:
            end_us = max((ends_us[need] for need in task.needs), default=0.0)
            if task.name not in read and end_us >= latest_us:
                end_us = max(end_us, over_us)
            ends_us[task.name] = end_us
            spans.append(Span(end_us, end_us, task, task.processor or ""))
    return replace(trace, spans=tuple(sorted(spans, key=lambda span: span.end_us)))
