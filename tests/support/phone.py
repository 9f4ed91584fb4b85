"""A phone of three processors, and what the real clock must not do."""

from __future__ import annotations

from nnstretch.schedule import StaticPlacement
from nnstretch.soc import Processor
from nnstretch.trace import Trace

CPU, DSP, GPU = Processor("cpu", "cpu", 2), Processor("dsp", "dsp", 2), Processor("gpu", "gpu", 1)
PHONE = (CPU, DSP, GPU)


def placed(asynchronous_first: bool = True) -> StaticPlacement:
    return StaticPlacement(("cpu", "dsp", "gpu"), asynchronous_first)


def never_before(real: Trace, virtual: Trace) -> None:
    """The real clock follows the virtual one.

    A task may end late, and starts that were late are made up for, but none ends early.
    """
    ends_us = {span.task.name: span.end_us for span in virtual.spans}
    assert all(span.end_us >= ends_us[span.task.name] - 1e-6 for span in real.spans)
