"""Several plans of one network before one service: which request runs by which plan, on any clock.

The virtual clock and real threads drive the same code. A task knows its plan, so that plans never
mix.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from math import inf

from nnstretch.bundle.manifest import MAIN, Manifest
from nnstretch.errors import BadInput
from nnstretch.protocols import Executor, Policy
from nnstretch.schedule.plan_selection import PlanSelector, PlanVariant, SelectionSettings
from nnstretch.schedule.rebalancing import (
    Rebalancer,
    RebalancingSettings,
    SlowdownEstimator,
    TaskCosts,
)
from nnstretch.schedule.request_scheduler import Request, RequestOutcome, RequestScheduler
from nnstretch.schedule.task_graph import (
    enqueue_times_us,
    task_durations_us,
    task_graph,
)
from nnstretch.soc import Processor
from nnstretch.task import Task, WorkKey, task_name
from nnstretch.trace import Span

FIRST_PROBE = 1 << 62
"""Probes are requests of the runtime's own, behind all others: their numbers start here."""


class MultiPlanScheduler:
    """Takes requests and answers each once, saying by which plan.

    With `adaptive` it moves between plans, else it keeps to one.

    `PlanSelector` says when. A request stays with the plan it was begun with; what fails of it runs
    elsewhere (`RequestScheduler`), and so does what a slow processor has not been handed yet
    (`Rebalancer`), as `rebalancing_settings` say; None moves nothing inside a request.
    """

    def __init__(
        self,
        manifests: Mapping[str, Manifest],
        processors: Sequence[Processor],
        policy: Policy,
        executor: Executor,
        answered: Callable[[RequestOutcome, str], None],
        adaptive: bool = False,
        selection_settings: SelectionSettings = SelectionSettings(),  # noqa: B008 (frozen)
        ended: Callable[[Span], None] | None = None,
        rebalancing_settings: RebalancingSettings | None = RebalancingSettings(),  # noqa: B008 (frozen)
    ) -> None:
        self._manifests, self._executor, self._answered, self._ended = (
            manifests,
            executor,
            answered,
            ended,
        )
        times_us = {
            key: us
            for key, us in plan_durations_us(manifests, processors).items()
            if key[1] in {p.name for p in processors}
        }
        handovers_us = plan_enqueue_us(manifests, processors)
        variants = []
        for name, manifest in manifests.items():
            tasks = task_graph(manifest, 0, name)
            works = {task.work for task in tasks}
            own_us = {key: us for key, us in times_us.items() if key[0] in works}
            variants.append(PlanVariant(name, tasks, own_us, handovers_us))
        rebalancer = (
            rebalancer_for(variants, TaskCosts(times_us, handovers_us), rebalancing_settings)
            if adaptive and rebalancing_settings is not None
            else None
        )
        self.chooser = PlanSelector(variants, selection_settings) if adaptive else None
        self._fixed = next(iter(manifests))
        self._by: dict[int, str] = {}
        """Plan of every open request."""
        self._probes = count(FIRST_PROBE)
        self.service = RequestScheduler(
            processors, policy, executor, self._on_outcome, times_us, self._on_span, rebalancer
        )

    def __len__(self) -> int:
        """Return how many requests have not been answered."""
        return len(self._by)

    def submit(
        self,
        number: int,
        deadline_us: float = inf,
        begin: Callable[[str], None] = lambda plan: None,
    ) -> None:
        """Choose a plan for a request, tell `begin`, and start it.

        It may be answered before this returns. Raises Stuck as `Service` does.
        """
        plan = self._choose_plan()
        self._by[number] = plan
        begin(plan)
        self.service.submit(
            Request(number, task_graph(self._manifests[plan], number, plan), deadline_us)
        )
        if self.chooser is not None and (probes := self.chooser.probes()):
            # Before what is only tried: enqueueing that would hold the host.
            self.service.dispatch()
            self._probe(probes)

    def _probe(self, probes: Sequence[Task]) -> None:
        for task in probes:
            probe = next(self._probes)
            name = task_name(task.subgraph, probe, task.plan)
            alone = replace(task, name=name, needs=frozenset(), request=probe)
            self.service.submit(Request(probe, (alone,), stays=True))

    def _choose_plan(self) -> str:
        if self.chooser is None:
            return self._fixed
        self.chooser.set_failed(self._executor.failed())
        return self.chooser.choose().name

    def cancel(self, number: int) -> bool:
        """Take a request back; False where it has ended."""
        return self.service.cancel(number)

    def step(self) -> Hashable | None:
        """Do what happens next; see `RequestScheduler.step`."""
        return self.service.step()

    def _on_outcome(self, answer: RequestOutcome) -> None:
        if answer.request < FIRST_PROBE:
            self._answered(answer, self._by.pop(answer.request))

    def _on_span(self, span: Span) -> None:
        if self.chooser is not None:
            self.chooser.observe(span)
        if self._ended is not None:
            self._ended(span)


def plan_durations_us(
    manifests: Mapping[str, Manifest], processors: Sequence[Processor] = ()
) -> dict[tuple[WorkKey, str], float]:
    """Return the durations of all plans, by (sub-graph of a plan, processor).

    Without what `processors` hold the host for (`plan_enqueue_us`).
    """
    return {
        key: us
        for name, manifest in manifests.items()
        for key, us in task_durations_us(manifest, processors, name).items()
    }


def plan_enqueue_us(
    manifests: Mapping[str, Manifest], processors: Sequence[Processor]
) -> dict[tuple[WorkKey, str], float]:
    """Return the enqueue times of each sub-graph of all plans, on every processor it is
    predicted for.
    """
    return {
        key: us
        for name, manifest in manifests.items()
        for key, us in enqueue_times_us(manifest, processors, name).items()
    }


def rebalancer_for(
    variants: Sequence[PlanVariant], costs: TaskCosts, rebalancing_settings: RebalancingSettings
) -> Rebalancer:
    """Return a rebalancer whose times are counted in latencies of the fastest plan."""
    latency_us = max(1.0, min(variant.latency_us({}) for variant in variants))
    return Rebalancer(
        costs,
        SlowdownEstimator(
            rebalancing_settings.evidence * latency_us, rebalancing_settings.half_life * latency_us
        ),
        rebalancing_settings,
    )


def is_probe(task: Task) -> bool:
    """Return whether a task only probes a processor."""
    return task.request >= FIRST_PROBE


def is_adaptive(manifests: Mapping[str, Manifest], wanted: bool | None, where: str) -> bool:
    """Return whether to move between plans: as asked for, else where several are all predicted.

    Raises BadInput where it cannot.
    """
    every = [(name, sub) for name, manifest in manifests.items() for sub in manifest.subgraphs]
    unknown = [
        f"{sub.name} of plan {name}" for name, sub in every if sub.processor not in sub.predicted_us
    ]
    if wanted and len(manifests) < 2:
        raise BadInput(
            f"adaptive with the one plan {next(iter(manifests), MAIN)}, {where}, needed are"
            " several: nnstretch export --also"
        )
    if wanted and unknown:
        raise BadInput(
            f"adaptive without predicted times, {where}, {unknown[0]} has none: nnstretch export"
            " --soc"
        )
    return len(manifests) > 1 and not unknown if wanted is None else wanted
