"""Protocols: the seams between parts, and what crosses them. Think twice before adding one.

    Policy           which ready task goes to which free processor now
    Executor         runs tasks on processors, and tells the time
    Backend          computes a sub-graph's true numbers
    BindableBackend  a backend whose calls are prepared once for memory that stays where it is
    DeviceBackend    a backend whose device has memory of its own

The predictor's protocol stands beside its estimate, in `predictor.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np

    from nnstretch.soc import Processor
    from nnstretch.task import Task
    from nnstretch.trace import Failure, Span, TimerEvent


@dataclass(frozen=True, slots=True)
class SchedulerState:
    """What a policy may look at when it chooses."""

    now_us: float
    ready: tuple[Task, ...]
    free: tuple[Processor, ...]


class Policy(Protocol):
    """Chooses among ready tasks; the loop asks again until it declines."""

    def pick(self, moment: SchedulerState, /) -> tuple[Task, Processor] | None:
        """Return the next task and its processor, None to wait for an event."""


class Executor(Protocol):
    """Runs tasks on processors under a clock, virtual or real."""

    @property
    def now_us(self) -> float:
        """Return the time on the executor's clock, us."""

    def free(self) -> tuple[Processor, ...]:
        """Return processors whose bounded queue has room."""
        ...

    def failed(self) -> frozenset[str]:
        """Return names of processors that have failed; they are never free again."""
        ...

    def submit(self, task: Task, processor: Processor, /) -> None:
        """Begin a task on a processor."""

    def set_timer(self, at_us: float, what: Hashable, /) -> None:
        """Ask for an Alarm at a time of this clock."""
        ...

    def wait(self) -> Span | Failure | TimerEvent | None:
        """Return what happens next; None when nothing is in flight and no timer is set."""
        ...


class Backend(Protocol):
    """Computes one sub-graph; called from the thread of the processor that owns it."""

    def run(self, inputs: Mapping[str, np.ndarray], /) -> Sequence[np.ndarray]:
        """Run the sub-graph; outputs in the order of its output names."""
        ...


@runtime_checkable
class BindableBackend(Protocol):
    """A backend whose calls can be prepared once for memory that stays where it is."""

    def bind(
        self, reads: Mapping[str, np.ndarray], writes: Sequence[np.ndarray], /
    ) -> Callable[[], object]:
        """Return a call that reads these arrays and fills those, in the order of the sub-graph's
        output names, as often as it is called.

        What it fills may be part of a larger array, with gaps between rows.
        """
        ...


@runtime_checkable
class DeviceBackend(Protocol):
    """A backend that copies to and from its device apart from its compute, so that three threads
    may be in it with three items.
    """

    def upload(self, inputs: Mapping[str, np.ndarray], /) -> object:
        """Return inputs on the device, when they are there."""
        ...

    def execute(self, tensors: object, /) -> object:
        """Return outputs on the device, of inputs that are there."""
        ...

    def download(self, tensors: object, /) -> Sequence[np.ndarray]:
        """Return outputs in the order of the sub-graph's output names."""
        ...
