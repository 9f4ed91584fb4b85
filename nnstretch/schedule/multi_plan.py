"""Several plans of one network behind one scheduler: which request runs by which plan.

The virtual clock and real threads drive the same code. A task knows its plan, so that plans never
mix.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from math import inf

from nnstretch.bundle.bundle import Bundle
from nnstretch.bundle.manifest import MAIN, Manifest, plans_by_name
from nnstretch.bundle.variants import select_plan
from nnstretch.errors import BadInput
from nnstretch.protocols import Executor, Policy
from nnstretch.schedule.finish_times import TaskCosts
from nnstretch.schedule.plan_selection import PlanSelector, PlanVariant
from nnstretch.schedule.rebalancing import Rebalancer
from nnstretch.schedule.request import Request
from nnstretch.schedule.request_scheduler import RequestScheduler
from nnstretch.schedule.slowdown import AdaptationSettings, slowdown_estimator
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

    With `adaptive` every request takes the plan that is fastest now (`PlanSelector`), else the
    first. It keeps its plan; tasks of it that fail run elsewhere (`RequestScheduler`), and so do
    tasks of slow processors that are not dispatched yet (`Rebalancer`).
    """

    def __init__(
        self,
        manifests: Mapping[str, Manifest],
        processors: Sequence[Processor],
        policy: Policy,
        executor: Executor,
        answered: Callable[[Request, str], None],
        adaptive: bool = False,
        settings: AdaptationSettings = AdaptationSettings(),  # noqa: B008 (frozen)
        ended: Callable[[Span], None] | None = None,
    ) -> None:
        self._manifests = manifests
        self._executor = executor
        self._answered = answered
        names = {processor.name for processor in processors}
        times_us = plan_durations_us(manifests, processors)
        times_us = {key: us for key, us in times_us.items() if key[1] in names}
        costs = TaskCosts(times_us, plan_enqueue_us(manifests, processors))
        self._selector: PlanSelector | None = None
        rebalancer = None
        if adaptive:
            variants = plan_variants(manifests, costs)
            latency_us = min(variant.latency_us({}) for variant in variants)
            slowdowns = slowdown_estimator(settings, latency_us)
            self._selector = PlanSelector(variants, slowdowns, settings)
            rebalancer = Rebalancer(costs, slowdowns, settings)
        self._fixed = next(iter(manifests))
        self._plans: dict[int, str] = {}
        """Plan of every open request."""
        self._probes = count(FIRST_PROBE)
        self.service = RequestScheduler(
            processors, policy, executor, self._on_outcome, times_us, ended, rebalancer
        )

    def __len__(self) -> int:
        """Return how many requests have not been answered."""
        return len(self._plans)

    def submit(
        self,
        number: int,
        deadline_us: float = inf,
        begin: Callable[[str], None] = lambda plan: None,
    ) -> None:
        """Choose a plan for a request, tell `begin`, and start it.

        It may be answered before this returns. Raises Stuck as `RequestScheduler` does.
        """
        plan = self._choose_plan()
        self._plans[number] = plan
        begin(plan)
        self.service.submit(
            Request(number, task_graph(self._manifests[plan], number, plan), deadline_us)
        )
        if self._selector is not None and (probes := self._selector.probes()):
            # Before the probes: enqueueing them would hold the host.
            self.service.dispatch()
            self._probe(probes)

    def _probe(self, probes: Sequence[Task]) -> None:
        for task in probes:
            probe = next(self._probes)
            name = task_name(task.subgraph, probe, task.plan)
            alone = replace(task, name=name, needs=frozenset(), request=probe)
            self.service.submit(Request(probe, (alone,), stays=True))

    def _choose_plan(self) -> str:
        if self._selector is None:
            return self._fixed
        return self._selector.choose(self._executor.now_us, self._executor.failed()).name

    def cancel(self, number: int) -> bool:
        """Take a request back; False where it has ended."""
        return self.service.cancel(number)

    def step(self) -> Hashable | None:
        """Do what happens next; see `RequestScheduler.step`."""
        return self.service.step()

    def _on_outcome(self, answer: Request) -> None:
        if answer.number < FIRST_PROBE:
            self._answered(answer, self._plans.pop(answer.number))


def plan_durations_us(
    manifests: Mapping[str, Manifest], processors: Sequence[Processor] = ()
) -> dict[tuple[WorkKey, str], float]:
    """Return the durations of all plans, by (sub-graph of a plan, processor).

    Without what `processors` hold the host for (`plan_enqueue_us`).
    """
    durations_us: dict[tuple[WorkKey, str], float] = {}
    for name, manifest in manifests.items():
        durations_us |= task_durations_us(manifest, processors, name)
    return durations_us


def plan_enqueue_us(
    manifests: Mapping[str, Manifest], processors: Sequence[Processor]
) -> dict[tuple[WorkKey, str], float]:
    """Return the enqueue times of each sub-graph of all plans, on every processor it is
    predicted for.
    """
    enqueue_us: dict[tuple[WorkKey, str], float] = {}
    for name, manifest in manifests.items():
        enqueue_us |= enqueue_times_us(manifest, processors, name)
    return enqueue_us


def plan_variants(manifests: Mapping[str, Manifest], costs: TaskCosts) -> tuple[PlanVariant, ...]:
    """Return plans as the selector sees them, each with the costs of its own sub-graphs."""
    variants: list[PlanVariant] = []
    for name, manifest in manifests.items():
        tasks = task_graph(manifest, 0, name)
        works = {task.work for task in tasks}
        quiet_us = {key: us for key, us in costs.quiet_us.items() if key[0] in works}
        variants.append(PlanVariant(name, tasks, replace(costs, quiet_us=quiet_us)))
    return tuple(variants)


def is_probe(task: Task) -> bool:
    """Return whether a task only probes a processor."""
    return task.request >= FIRST_PROBE


def ran_elsewhere(span: Span) -> bool:
    """Return whether a request's task ran elsewhere than planned, be its request open or over."""
    task = span.task
    return task.processor not in (None, span.processor) and not is_probe(task)


def plans_to_serve(
    bundle: Bundle, plan: str | None = None, adaptive: bool | None = None
) -> dict[str, Manifest]:
    """Return the plans that requests may take: several where they are served adaptively.

    `plan` keeps to one. Raises UnknownName for a plan that the bundle lacks, BadInput where
    `adaptive` is asked for and cannot be.
    """
    manifests = plans_by_name(bundle.manifest)
    if plan is not None:
        manifests = {plan: select_plan(bundle, plan).manifest}
    if is_adaptive(manifests, adaptive, bundle.name):
        return manifests
    main = next(iter(manifests))
    return {main: manifests[main]}


def is_adaptive(manifests: Mapping[str, Manifest], wanted: bool | None, where: str) -> bool:
    """Return whether to move between plans: as asked for, else where several are all predicted.

    Raises BadInput where it cannot.
    """
    unknown: list[str] = []
    for name, manifest in manifests.items():
        for sub in manifest.subgraphs:
            if sub.processor not in sub.predicted_us:
                unknown.append(f"{sub.name} of plan {name}")
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
