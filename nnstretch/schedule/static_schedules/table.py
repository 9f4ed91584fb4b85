"""Every static policy with its source, tie rule and cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nnstretch.schedule.static_schedules.greedy import etf_start, max_min, mct, met, min_min, olb
from nnstretch.schedule.static_schedules.insertion import cpop, heft, peft
from nnstretch.task_graph import TaskGraph
from nnstretch.trace import Trace


@dataclass(frozen=True, slots=True)
class StaticPolicy:
    """A rule that schedules a whole task graph before anything runs."""

    make: Callable[[TaskGraph], Trace]
    rule: str
    """What it chooses."""
    source: str
    ties: str
    """What decides between equal choices."""
    cost: str
    """Time per task, of P processors and n tasks."""


TOPCUOGLU = "Topcuoglu, Hariri, Wu 2002"
BRAUN = "Braun et al. 2001"
INDEX = "first task, then first processor"
STATIC_POLICIES = {
    "heft": StaticPolicy(
        heft,
        "by upward rank, into the gap where it ends first",
        TOPCUOGLU,
        INDEX,
        "O(needs x P + P log n)",
    ),
    "cpop": StaticPolicy(
        cpop,
        "critical path on one processor, all else where it ends first",
        TOPCUOGLU,
        INDEX,
        "O(needs x P + P log n)",
    ),
    "peft": StaticPolicy(
        peft,
        "by optimistic cost, where end and optimistic cost are least",
        "Arabnejad, Barbosa 2014",
        INDEX,
        "O(needs x P + P log n)",
    ),
    "min_min": StaticPolicy(
        min_min,
        "ready task that can end first",
        BRAUN,
        INDEX,
        "O(n x P)",
    ),
    "max_min": StaticPolicy(
        max_min,
        "ready task whose earliest end is last",
        BRAUN,
        INDEX,
        "O(n x P)",
    ),
    "etf_start": StaticPolicy(
        etf_start,
        "pair of ready task and processor that starts first",
        "Hwang, Chow, Anger, Lee 1989",
        INDEX,
        "O(n x P)",
    ),
    "mct": StaticPolicy(
        mct,
        "first ready task, where it ends first",
        BRAUN,
        INDEX,
        "O(needs x P)",
    ),
    "met_static": StaticPolicy(
        met,
        "first ready task, where it takes least",
        BRAUN,
        INDEX,
        "O(needs x P)",
    ),
    "olb": StaticPolicy(
        olb,
        "first ready task, processor that is free first",
        BRAUN,
        INDEX,
        "O(needs x P)",
    ),
}
"""By the name that `schedule --policy` takes."""
