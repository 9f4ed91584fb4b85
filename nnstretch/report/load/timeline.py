"""One request of a trace, on an axis that starts at zero."""

from __future__ import annotations

from dataclasses import dataclass

from nnstretch.trace import Span, Trace


@dataclass(frozen=True, slots=True)
class TimelineSpan:
    """A span, and what it is in the plan."""

    span: Span
    segment: str
    """`s3`: the same for the branches that meet and for their merge."""
    is_merge: bool


@dataclass(frozen=True, slots=True)
class Timeline:
    """Request of a trace file, starting at zero."""

    source: str
    """`predicted` or `measured`, as the trace calls it."""
    parts: tuple[TimelineSpan, ...]
    request: int
    requests: int
    """How many requests the file holds."""
    whole: int
    """How many of them ran all tasks of their plan: the one of median length of these is kept, of
    all where none did.
    """
    timing: str | None = None
    """Kind of a run's milliseconds, measured or emulated; None where the file does not say."""
    others: tuple[TimelineSpan, ...] = ()
    """What other requests did between its start and its end."""

    @property
    def trace(self) -> Trace:
        """Return the timeline as a trace."""
        return Trace(tuple(part.span for part in self.parts))
