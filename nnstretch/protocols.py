"""The seams of the house, and the values that cross them. Think twice before adding one.

Predictor   what a kernel costs on one processor
Policy      which ready task goes to which free processor now
Executor    who runs it, and what time it is
Backend     who computes a sub-graph's true numbers
Wirable     a backend that can be given its memory once
Remote      a backend whose device has memory of its own
Constraint  why a trial is refused, or None
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np

    from nnstretch.soc import Processor
    from nnstretch.trace import Failure, Span, Task, TimerEvent
    from nnstretch.trial import Trial, Violation


key_of = attrgetter(
    "kind",
    "op",
    "epilogue",
    "cin",
    "cout",
    "hw_in",
    "hw_out",
    "kernel",
    "stride",
    "groups",
    "batch",
    "macs",
    "read_elements",
    "write_elements",
    "weight_elements",
    "shapes_in",
    "shape_out",
    "layout",
)


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch on a processor: an operator with the cheap ones fused behind it."""

    name: str
    """Name of the first node in it."""
    kind: str
    """conv, gconv, dwconv, linear, pool, gap, add, mul, concat, norm, activation, matmul, softmax,
    reshape, or the operator's own name.
    """
    cin: int
    cout: int
    hw_in: int
    """Input pixels (height times width) or tokens; 1 after the head."""
    hw_out: int
    kernel: int
    """Side of the window, the larger where it is not square; 1 where there is none."""
    stride: int
    groups: int
    batch: int
    macs: int
    read_elements: int
    """Activations read; weights apart."""
    write_elements: int
    weight_elements: int
    nodes: tuple[str, ...] = ()
    """Everything fused into it, in execution order."""
    op: str = ""
    """PyTorch's name of the operator that gives it its kind: `conv2d`, `hardswish`, `max_pool2d`.

    Empty where unknown.
    """
    epilogue: tuple[str, ...] = ()
    """Operators fused behind it, in order.

    A batch norm folded into the weights is not there any more.
    """
    shapes_in: tuple[tuple[int, ...], ...] = ()
    """Activations it reads, in the order of its arguments; empty where unknown."""
    shape_out: tuple[int, ...] = ()
    layout: str = ""
    """`blocked` where it works on blocks of channels (NCHWc), `padded` where it pads in a copy of
    its own; empty otherwise.
    """

    @property
    def key(self) -> tuple[object, ...]:
        """What its latency depends on: everything but the names in the network."""
        return key_of(self)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A latency, and how far it is usually off."""

    latency_us: float
    error_us: float
    """Root-mean-square error on cases that the predictor was not fitted on."""
    interval_us: tuple[float, float] | None = None
    """90% of the latencies lie between these; None where nobody counted."""


class Predictor(Protocol):
    """Estimates one kernel on one processor, from its description alone."""

    @property
    def processor(self) -> str:
        """Name of the `Processor` that was measured."""
        ...

    def estimate(self, kernel: Kernel, /) -> Estimate:
        """Raise `UnsupportedOp` for a kind never measured; never guess zero."""
        ...


class Constraint(Protocol):
    """A pure question about a trial whose answer is None or the reason."""

    def __call__(self, trial: Trial, /) -> Violation | None: ...


@dataclass(frozen=True, slots=True)
class SchedulerState:
    """What a policy may look at when it chooses."""

    now_us: float
    ready: tuple[Task, ...]
    free: tuple[Processor, ...]


class Policy(Protocol):
    """Chooses among ready tasks; the loop asks again until it declines."""

    def pick(self, moment: SchedulerState, /) -> tuple[Task, Processor] | None: ...


class Executor(Protocol):
    """Runs tasks on processors under a clock, virtual or real."""

    @property
    def now_us(self) -> float: ...

    def free(self) -> tuple[Processor, ...]:
        """Processors whose bounded queue has room."""
        ...

    def failed(self) -> frozenset[str]:
        """Names of processors that have failed; they are never free again."""
        ...

    def submit(self, task: Task, processor: Processor, /) -> None: ...

    def set_timer(self, at_us: float, what: Hashable, /) -> None:
        """Ask for an Alarm at a time of this clock."""
        ...

    def wait(self) -> Span | Failure | TimerEvent | None:
        """What happens next; None when nothing is in flight and no alarm is set."""
        ...


class Backend(Protocol):
    """Computes one sub-graph; called from the thread of the processor that owns it."""

    def run(self, inputs: Mapping[str, np.ndarray], /) -> Sequence[np.ndarray]:
        """Outputs in the order of the sub-graph's output names."""
        ...


@runtime_checkable
class BindableBackend(Protocol):
    """A backend whose calls can be prepared once for memory that stays where it is."""

    def bind(
        self, reads: Mapping[str, np.ndarray], writes: Sequence[np.ndarray], /
    ) -> Callable[[], object]:
        """A call that reads these arrays and fills those, in the order of the sub-graph's output
        names, as often as it is called.

        What it fills may be part of a larger array, with gaps between rows.
        """
        ...


@runtime_checkable
class DeviceBackend(Protocol):
    """A backend that copies to and from its device apart from its compute, so that three threads
    may be in it with three items.
    """

    def upload(self, inputs: Mapping[str, np.ndarray], /) -> object:
        """Inputs on the device, when they are there."""
        ...

    def execute(self, held: object, /) -> object:
        """Outputs on the device, of inputs that are there."""
        ...

    def download(self, held: object, /) -> Sequence[np.ndarray]:
        """Outputs in the order of the sub-graph's output names."""
        ...
