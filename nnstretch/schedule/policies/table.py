"""All policies that a name may ask for, each with its source, tie rule and cost per decision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from nnstretch.errors import UnknownName, closest
from nnstretch.protocols import Policy
from nnstretch.schedule.costs.cost_rows import CostRows
from nnstretch.schedule.policies.in_order import (
    EarliestFinish,
    FirstAvailable,
    LargestMeanFirst,
    LeastSlack,
)
from nnstretch.schedule.policies.in_turn import CheapestTypeInTurn, InTurn, RandomOrder
from nnstretch.schedule.policies.over_pairs import (
    EarliestPair,
    EarliestStart,
    LargestEarliestFinish,
    Sufferage,
)
from nnstretch.schedule.policies.work_stealing import WorkStealing
from nnstretch.schedule.static_schedules.insertion import (
    place_by_cpop,
    place_by_heft,
    place_by_peft,
)
from nnstretch.schedule.static_schedules.planned_jobs import PlannedJobs
from nnstretch.task import WorkKey
from nnstretch.task_graph import TaskGraph


@dataclass(frozen=True, slots=True)
class PolicySetting:
    """What a policy is made of."""

    costs: CostRows
    seed: int = 0
    levels_us: Mapping[WorkKey, float] = field(default_factory=dict)
    """Static level by work, for the classic ETF."""
    graphs: Mapping[str, TaskGraph] = field(default_factory=dict)
    """What a job of each plan consists of, for static schedules."""
    wake: Callable[[float], None] | None = None
    """Asks for a decision at a time of the loop's clock, for static schedules."""
    is_open: Callable[[int], bool] | None = None
    """Whether a request has not ended, for static schedules."""


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """One policy of the table."""

    make: Callable[[PolicySetting], Policy]
    rule: str
    """What it chooses."""
    source: str
    ties: str
    """Which of equals it takes."""
    cost: str
    """Per decision, with P processors, n waiting tasks of k kinds."""


CEDR = "CEDR (UA-RCL/CEDR)"
BRAUN = "Braun et al., JPDC 61(6), 2001"
FIRST_TASK = "first task, then first processor"

POLICIES: Mapping[str, PolicyEntry] = {
    "rr": PolicyEntry(
        lambda s: InTurn(s.costs.mask),
        "first task, next processor that can run it",
        f"{CEDR}, SIMPLE",
        "pointer, moves on with every try",
        "O(P)",
    ),
    "random": PolicyEntry(
        lambda s: RandomOrder(s.costs, s.seed),
        "rr over a queue shuffled every round",
        f"{CEDR}, RANDOM",
        "pointer",
        "O(n) a round",
    ),
    "met": PolicyEntry(
        lambda s: CheapestTypeInTurn(s.costs),
        "first task, cheapest type of processor, in turn",
        f"{CEDR}, MET",
        "last type; one pointer for all types",
        "O(P)",
    ),
    "eft": PolicyEntry(
        lambda s: EarliestFinish(s.costs, last_wins=True),
        "first task, where it ends first",
        f"{CEDR}, EFT",
        "last processor",
        "O(P)",
    ),
    "etf": PolicyEntry(
        lambda s: EarliestPair(s.costs),
        "pair that ends first",
        f"{CEDR}, ETF (earliest time to finish)",
        FIRST_TASK,
        "O(P log k); O(nP) with copies",
    ),
    "heft_rt": PolicyEntry(
        lambda s: LargestMeanFirst(s.costs),
        "task of largest mean cost over types, where it ends first",
        f"Mack et al., TPDS 33(9), 2022; {CEDR}",
        FIRST_TASK,
        "O(P + log n)",
    ),
    "etf_start": PolicyEntry(
        lambda s: EarliestStart(s.costs, s.levels_us),
        "pair that starts first",
        "ETF: Hwang et al., SIAM J. Comput. 18(2), 1989",
        "highest static level, first task, first processor",
        "O(kP); O(nP) with copies",
    ),
    "mct": PolicyEntry(
        lambda s: EarliestFinish(s.costs),
        "first task, where it ends first",
        f"MCT: {BRAUN}",
        "first processor",
        "O(P)",
    ),
    "olb": PolicyEntry(
        lambda s: FirstAvailable(s.costs),
        "first task, processor that is available first",
        f"OLB: {BRAUN}",
        "first processor",
        "O(P)",
    ),
    "min_min": PolicyEntry(
        lambda s: EarliestPair(s.costs),
        "pair that ends first",
        f"Min-Min: {BRAUN}",
        FIRST_TASK,
        "O(P log k); O(nP) with copies",
    ),
    "max_min": PolicyEntry(
        lambda s: LargestEarliestFinish(s.costs),
        "task whose earliest end is last, where it ends first",
        f"Max-Min: {BRAUN}",
        FIRST_TASK,
        "O(kP); O(nP) with copies",
    ),
    "sufferage": PolicyEntry(
        lambda s: Sufferage(s.costs),
        "task that loses most by its second best processor",
        "Maheswaran et al., JPDC 59(2), 1999",
        FIRST_TASK,
        "O(kP); O(nP) with copies",
    ),
    "least_slack": PolicyEntry(
        lambda s: LeastSlack(s.costs),
        "task with the least time to spare, where it ends first",
        "Band (mrsnu/band), least slack time first",
        FIRST_TASK,
        "O(P + log n)",
    ),
    "least_slack_drop": PolicyEntry(
        lambda s: LeastSlack(s.costs, drop=True),
        "least_slack; gives up what cannot end in time",
        "Band (mrsnu/band), least slack time first",
        FIRST_TASK,
        "O(P + log n)",
    ),
    "band": PolicyEntry(
        lambda s: LargestEarliestFinish(s.costs),
        "task whose shortest expected latency is largest",
        "Band (mrsnu/band), shortest expected latency",
        FIRST_TASK,
        "O(kP); O(nP) with copies",
    ),
    "work_stealing": PolicyEntry(
        lambda s: WorkStealing(s.costs),
        "queue per processor; an idle one takes from the longest where that pays",
        "Blumofe, Leiserson, JACM 46(5), 1999",
        "first processor",
        "O(P)",
    ),
    "heft": PolicyEntry(
        lambda s: PlannedJobs(s.costs, s.graphs, place_by_heft, s.wake, s.is_open),
        "HEFT plans each arriving job into the gaps of earlier ones",
        "Topcuoglu, Hariri, Wu, TPDS 13(3), 2002",
        FIRST_TASK,
        "O(needs x P + log n) a task when its job arrives",
    ),
    "cpop": PolicyEntry(
        lambda s: PlannedJobs(s.costs, s.graphs, place_by_cpop, s.wake, s.is_open),
        "CPOP plans each arriving job into the gaps of earlier ones",
        "Topcuoglu, Hariri, Wu, TPDS 13(3), 2002",
        FIRST_TASK,
        "O(needs x P + log n) a task when its job arrives",
    ),
    "peft": PolicyEntry(
        lambda s: PlannedJobs(s.costs, s.graphs, place_by_peft, s.wake, s.is_open),
        "PEFT plans each arriving job into the gaps of earlier ones",
        "Arabnejad, Barbosa, TPDS 25(3), 2014",
        FIRST_TASK,
        "O(needs x P + log n) a task when its job arrives",
    ),
}


def find_policy(name: str) -> PolicyEntry:
    """Return a policy's entry. Raises UnknownName with the closest names for any other."""
    entry = POLICIES.get(name)
    if entry is None:
        near = closest(name, list(POLICIES)) or f"; it is one of {', '.join(POLICIES)}"
        raise UnknownName(f"unknown policy {name!r}, the table of policies has none of it{near}")
    return entry
