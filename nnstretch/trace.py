"""What ran where and when. Predicted and measured traces are one type, so they subtract."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from importlib import import_module

from nnstretch.task import Task, filled_quickly


@filled_quickly
@dataclass(frozen=True, slots=True)
class Span:
    """One task on one processor."""

    start_us: float
    end_us: float
    task: Task
    processor: str
    handed_us: float | None = field(default=None, compare=False)
    """When the host had handed it over, so that it lay in its processor's queue.

    None where nobody noted it.
    """

    @property
    def duration_us(self) -> float:
        """Return the time from start to end."""
        return self.end_us - self.start_us


@dataclass(frozen=True, slots=True)
class Failure:
    """A task that did not end."""

    at_us: float
    task: Task
    processor: str
    error: Exception
    """ProcessorFailed where the processor went; anything else is the task's own."""


@filled_quickly
@dataclass(frozen=True, slots=True)
class TimerEvent:
    """The end of a timer, with the tag it was set with."""

    at_us: float
    tag: Hashable


@dataclass(frozen=True, slots=True)
class Trace:
    """Spans in the order in which they ended."""

    spans: tuple[Span, ...]
    marks: tuple[Failure | TimerEvent, ...] = ()
    """Failed tasks and timers, in their order."""

    @property
    def makespan_us(self) -> float:
        """Return the time from the first start to the last end; zero for an empty trace."""
        if not self.spans:
            return 0.0
        return max(span.end_us for span in self.spans) - min(span.start_us for span in self.spans)

    def spans_by_task(self) -> dict[str, Span]:
        """Return the span of each task by the task's name."""
        return {span.task.name: span for span in self.spans}

    def busy_us(self, processor: str) -> float:
        """Return the time that a processor works."""
        return sum(span.duration_us for span in self.spans if span.processor == processor)

    @property
    def processors(self) -> tuple[str, ...]:
        """Return every processor that ran something, in order of first use."""
        return tuple(
            dict.fromkeys(span.processor for span in sorted(self.spans, key=lambda s: s.start_us))
        )

    def __str__(self) -> str:
        rows = (
            f"  {s.start_us:10.1f} {s.end_us:10.1f}  {s.processor:<6} {s.task.name}"
            for s in self.spans
        )
        return "\n".join([f"trace {self.makespan_us:.1f} us", *rows])

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        html: str = import_module("nnstretch.report.notebook").trace_html(self)
        return html
