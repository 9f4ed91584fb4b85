"""Hypothesis strategies: kernels of consistent shapes, platforms, task graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from nnstretch.kernel import Kernel
from nnstretch.profile.sampling.kernel_spec import KernelSpec, Shape, kernel_of_spec
from nnstretch.soc import Processor
from nnstretch.task import Task, TaskTimes, WorkKey
from nnstretch.task_graph import TaskGraph

CHANNEL_STEP = 16
"""Channels come in whole blocks, so that a kernel keeps its layout when it grows."""


@dataclass(frozen=True, slots=True)
class KernelForm:
    """Operator with what is fused behind it, without its size."""

    kind: str
    """One of `Kernel.kind`."""
    op: str
    window: int = 1
    layout: str = ""
    epilogue: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelSize:
    """Channels, side of the feature map, and batch."""

    cin: int
    cout: int
    side: int
    batch: int


def kernel_of_form(form: KernelForm, size: KernelSize) -> Kernel:
    """Return a kernel whose shapes, work, traffic and weights belong together."""
    reads, writes = kernel_shapes(form, size)
    groups = {"gconv": 4, "dwconv": size.cin}.get(form.kind, 1)
    stride = 2 if form.kind == "pool" else 1
    spec = KernelSpec(form.kind, form.op, reads, writes, form.window, stride, groups)
    return kernel_of_spec(spec, "k", form.epilogue, form.layout)


def kernel_shapes(form: KernelForm, size: KernelSize) -> tuple[tuple[Shape, ...], Shape]:
    """Return the shapes that a kernel reads, and the one that it writes."""
    batch, side, half = size.batch, size.side, -(-size.side // 2)
    plane = (batch, size.cin, side, side)
    match form.kind:
        case "conv" | "gconv":
            return (plane,), (batch, size.cout, side, side)
        case "linear":
            return ((batch, size.cin),), (batch, size.cout)
        case "matmul":
            tokens = side * side
            reads = ((batch, tokens, size.cin), (batch, size.cin, size.cout))
            return reads, (batch, tokens, size.cout)
        case "pool":
            return (plane,), (batch, size.cin, half, half)
        case "gap":
            return (plane,), (batch, size.cin, 1, 1)
        case "add" | "mul":
            return (plane, plane), plane
        case "concat":
            return (plane, plane), (batch, 2 * size.cin, side, side)
        case _:
            return (plane,), plane


def kernel_sizes() -> st.SearchStrategy[KernelSize]:
    """Draw sizes from one pixel of 16 channels to 64 x 64 pixels of 768."""
    channels = st.integers(1, 48).map(lambda blocks: blocks * CHANNEL_STEP)
    return st.builds(KernelSize, channels, channels, st.integers(1, 64), st.integers(1, 4))


@st.composite
def kernels(draw: st.DrawFn, forms: Sequence[KernelForm]) -> Kernel:
    """Draw a kernel of one of these forms."""
    return kernel_of_form(draw(st.sampled_from(forms)), draw(kernel_sizes()))


@st.composite
def platforms(draw: st.DrawFn) -> tuple[Processor, ...]:
    """Draw one to four processors: a CPU first, then accelerators of any kind and queue."""
    processors = [Processor("cpu", "cpu", draw(st.integers(1, 3)))]
    for number in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(("gpu", "dsp", "npu")))
        depth = draw(st.integers(1, 3))
        asynchronous = draw(st.booleans())
        name = f"{kind}{number}"
        processors.append(Processor(name, kind, depth, asynchronous=asynchronous))
    return tuple(processors)


@st.composite
def task_graphs(
    draw: st.DrawFn, processors: Sequence[Processor], placed: bool = True, max_tasks: int = 12
) -> tuple[Task, ...]:
    """Draw a DAG of tasks behind what they need; `placed`: each on one of the processors."""
    tasks: list[Task] = []
    names = [processor.name for processor in processors]
    for number in range(draw(st.integers(0, max_tasks))):
        earlier = [task.name for task in tasks]
        needs = draw(st.frozensets(st.sampled_from(earlier), max_size=3)) if tasks else frozenset()
        processor = draw(st.sampled_from(names)) if placed else None
        tasks.append(Task(f"t{number}", f"g{number}", needs, processor))
    return tuple(tasks)


@st.composite
def task_times(
    draw: st.DrawFn, tasks: Sequence[Task], processors: Sequence[Processor]
) -> TaskTimes:
    """Draw what every task takes on every processor, us; zero among them."""
    times_us: dict[tuple[WorkKey, str], float] = {}
    for task in tasks:
        for processor in processors:
            times_us[task.work, processor.name] = float(draw(st.integers(0, 1_000)))
    return times_us


@st.composite
def costed_task_graphs(draw: st.DrawFn, max_tasks: int = 12) -> TaskGraph:
    """Draw a task graph on one to four processors, some of which cannot run some tasks."""
    kinds = draw(st.lists(st.sampled_from(("cpu", "gpu", "dsp")), min_size=1, max_size=4))
    processors = tuple(Processor(f"p{number}", kind, 1) for number, kind in enumerate(kinds))
    tasks = draw(task_graphs(processors, placed=False, max_tasks=max_tasks))
    tasks = tasks or (Task("t0", "g0"),)
    times_us = draw(task_times(tasks, processors))
    cost_us: dict[tuple[WorkKey, str], float] = {}
    transfer_us: dict[tuple[WorkKey, WorkKey], float] = {}
    work_of = {task.name: task.work for task in tasks}
    for task in tasks:
        able = draw(st.sets(st.sampled_from(processors), min_size=1))
        for processor in able:
            cost_us[task.work, processor.name] = times_us[task.work, processor.name]
        for need in sorted(task.needs):
            transfer_us[work_of[need], task.work] = float(draw(st.integers(0, 500)))
    return TaskGraph("drawn", tasks, processors, cost_us, transfer_us)
