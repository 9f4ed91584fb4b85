"""Inference after inference on a virtual clock while processors are busy by turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nnstretch.bundle.manifest import Manifest
from nnstretch.schedule import Disturbances, Request, StaticPlacement, VirtualExecutor
from nnstretch.schedule.multi_plan import MultiPlanScheduler, plan_durations_us, plan_enqueue_us
from nnstretch.schedule.slowdown import AdaptationSettings
from nnstretch.soc import Soc

MAIN = "cpu+gpu"
"""The fastest plan on the quiet chip; the page says so where it is."""
STRETCHES = ((0, 50, "gpu"), (50, 155, "cpu"), (155, 200, "gpu"))
"""First and last inference, and who is busy: the slides' figure."""
QUIET = 20
"""Inferences before and behind, with nobody busy."""
NUMBERS = range(-QUIET, 200 + QUIET)


@dataclass(frozen=True)
class Disturbed(Disturbances):
    """Who is busy goes by inferences, not by time: each plan takes its own."""

    share: float = 0.5
    """Of a busy processor's speed that is left for us."""
    busy_now: dict[str, bool] = field(default_factory=dict)

    def end_us(self, processor: str, start_us: float, work_us: float) -> float:
        return start_us + (work_us / self.share if self.busy_now.get(processor) else work_us)


@dataclass
class Played:
    """One inference after another."""

    latencies_us: list[float] = field(default_factory=list)
    plans: list[str] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)
    """Sub-graphs that ran elsewhere than planned."""

    def hear(self, answer: Request, plan: str) -> None:
        self.latencies_us.append(answer.latency_us)
        self.plans.append(plan)
        self.moved.append(answer.replaced)


def play(
    manifests: Mapping[str, Manifest],
    soc: Soc,
    share: float,
    adaptive: bool,
    settings: AdaptationSettings = AdaptationSettings(),  # noqa: B008 (frozen)
) -> Played:
    """Serve a client as `Server` does that asks again when it is answered."""
    played, disturbed = Played(), Disturbed(share=share)
    clock = VirtualExecutor(
        soc.processors,
        plan_durations_us(manifests, soc.processors),
        disturbances=disturbed,
        handovers_us=plan_enqueue_us(manifests, soc.processors),
    )
    policy = StaticPlacement(tuple(p.name for p in soc.processors))
    plans = MultiPlanScheduler(
        *(manifests, soc.processors, policy, clock, played.hear, adaptive),
        settings=settings,
    )
    for n in NUMBERS:
        disturbed.busy_now.clear()
        disturbed.busy_now[who_is_busy(n) or ""] = True
        plans.submit(n + QUIET)
        while len(plans):
            plans.step()
    return played


def who_is_busy(inference: int) -> str | None:
    return next((busy for first, last, busy in STRETCHES if first <= inference < last), None)


def worst(mine: list[float], fixed: list[float]) -> tuple[float, int]:
    """Return the largest ratio, and at which inference it is."""
    return max((one / other, n) for n, one, other in zip(NUMBERS, mine, fixed, strict=True))
