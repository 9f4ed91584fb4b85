"""Protocols: the seams between parts, and what crosses them. Think twice before adding one.

    Policy           which waiting task goes to which processor now
    Executor         runs tasks on processors, and tells the time
    Backend          computes a sub-graph's true numbers
    BindableBackend  a backend whose calls are prepared once for memory that stays where it is
    DeviceBackend    a backend whose device has memory of its own

The predictor's protocol stands beside its estimate, in `predictor.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np

    from nnstretch.soc import Processor
    from nnstretch.task import Task
    from nnstretch.trace import Failure, Span, TimerEvent


@dataclass(slots=True, eq=False)
class ReservedTasks:
    """Tasks of one priority that a processor was given and that its own queue does not have yet."""

    count: int = 0
    total_us: float = 0.0
    """What they are expected to take."""


@dataclass(slots=True, eq=False)
class ProcessorState:
    """What a policy may look at of a processor; the loop keeps it up to date."""

    processor: Processor
    index: int
    """Its number among the processors of the loop, and in every row of costs."""
    open: bool = True
    """Whether it may be given work now."""
    free_us: float = 0.0
    """When it is expected to have done what runs, was handed over and is reserved; in the past
    where it is idle."""
    alive: bool = True
    """False once it has failed, until it is back."""
    reserved: Mapping[int, ReservedTasks] = field(default_factory=dict)
    """By priority, the greatest first: these start before all others."""

    @property
    def name(self) -> str:
        """Return the processor's name."""
        return self.processor.name

    def free_us_for(self, priority: int) -> float:
        """Return when it is expected to be free for a task of a priority, us: what is reserved of
        lesser ones waits.
        """
        free_us = self.free_us
        for level in reversed(tuple(self.reserved)):
            if level < priority:
                free_us -= self.reserved[level].total_us
        return free_us

    def has_lesser(self, priority: int) -> bool:
        """Return whether anything of a lesser priority is reserved."""
        lesser = [level for level in self.reserved if level < priority]
        return any(self.reserved[level].count for level in lesser)


Choice = tuple["Task", ProcessorState | None]
"""A task and its processor; None where the task is to be given up, too late to be worth it."""


class Policy(Protocol):
    """Chooses among tasks that may start; the loop asks until it declines.

    All that happens at one instant is heard before the policy is asked. A task that it has chosen
    does not wait any more.
    """

    def add(self, task: Task, /) -> None:
        """Hear that a task may start."""

    def withdraw(self, task: Task, /) -> None:
        """Hear that a waiting task is not wanted any more."""

    def pick(self, now_us: float, processors: Sequence[ProcessorState], /) -> Choice | None:
        """Return the next task and an open processor, None to wait for an event."""


class Executor(Protocol):
    """Runs tasks on processors under a clock, virtual or real."""

    @property
    def processors(self) -> tuple[Processor, ...]:
        """Return the processors, in order of preference."""
        ...

    @property
    def now_us(self) -> float:
        """Return the time on the executor's clock, us."""

    def failed(self) -> frozenset[str]:
        """Return names of processors that have failed; they are never free again."""
        ...

    def submit(self, task: Task, processor: Processor, ready_us: float = 0.0, /) -> None:
        """Begin a task on a processor whose queue has room, not before its data are there."""

    def set_timer(self, at_us: float, what: Hashable, /) -> None:
        """Ask for an Alarm at a time of this clock."""
        ...

    def wait(self) -> Span | Failure | TimerEvent | None:
        """Return what happens next; None when nothing is in flight and no timer is set."""
        ...

    def more(self) -> bool:
        """Return whether something more has happened at this instant already."""
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
        """Return inputs on the device, once they are copied."""
        ...

    def execute(self, tensors: object, /) -> object:
        """Return outputs on the device of inputs on the device."""
        ...

    def download(self, tensors: object, /) -> Sequence[np.ndarray]:
        """Return outputs in the order of the sub-graph's output names."""
        ...
