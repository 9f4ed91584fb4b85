"""Several plans of one network before one service: which request runs by which plan, on any clock.

The virtual clock and real threads drive the same code. Sub-graphs are named `PLAN/SUBGRAPH`, so that plans never mix.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from math import inf

from nnstretch.errors import BadInput
from nnstretch.manifest import MAIN, Manifest
from nnstretch.protocols import Executor, Policy
from nnstretch.schedule.adaptive import Chooser, Manner, Variant
from nnstretch.schedule.moves import Caution, Costs, Mover, Slowdowns
from nnstretch.schedule.service import Answer, Request, Service
from nnstretch.schedule.tasks import durations_of, handovers_of, subgraph_of, tasks_of
from nnstretch.soc import Processor
from nnstretch.trace import Span, Task

FIRST_PROBE = 1 << 62
"""Probes are requests of the runtime's own, behind all others: their numbers start here."""


class Plans:
    """Takes requests and answers each once, saying by which plan; with `adaptive` it moves between plans, else it keeps to one.

    `Chooser` says when. A request stays with the plan it was begun with; what fails of it runs elsewhere (`Service`), and so does what a
    slow processor has not been handed yet (`Mover`), as `caution` says; None moves nothing inside a request.
    """

    def __init__(
        self,
        manifests: Mapping[str, Manifest],
        processors: Sequence[Processor],
        policy: Policy,
        executor: Executor,
        answered: Callable[[Answer, str], None],
        adaptive: bool = False,
        manner: Manner = Manner(),  # noqa: B008 (frozen)
        ended: Callable[[Span], None] | None = None,
        caution: Caution | None = Caution(),  # noqa: B008 (frozen)
    ) -> None:
        self._manifests, self._executor, self._answered, self._ended = manifests, executor, answered, ended
        times_us = {key: us for key, us in durations_us_of(manifests, processors).items() if key[1] in {p.name for p in processors}}
        handovers_us = handovers_us_of(manifests, processors)
        own = {name: {key: us for key, us in times_us.items() if parted(key[0])[0] == name} for name in manifests}
        variants = [Variant(name, tasks_of(one, 0, f"{name}/"), own[name], handovers_us) for name, one in manifests.items()]
        mover = mover_of(variants, Costs(times_us, handovers_us), caution) if adaptive and caution is not None else None
        self.chooser = Chooser(variants, manner) if adaptive else None
        self._fixed = next(iter(manifests))
        self._by: dict[int, str] = {}
        """Plan of every open request."""
        self._probes = count(FIRST_PROBE)
        self.service = Service(processors, policy, executor, self._over, times_us, self._heard, mover)

    def __len__(self) -> int:
        """Requests of others that have not been answered."""
        return len(self._by)

    def arrive(self, number: int, deadline_us: float = inf, begin: Callable[[str], None] = lambda plan: None) -> None:
        """Choose a plan for a request, tell `begin`, and start it; it may be answered before this returns. Raises Stuck as `Service` does."""
        plan = self._chosen()
        self._by[number] = plan
        begin(plan)
        self.service.arrive(Request(number, tasks_of(self._manifests[plan], number, f"{plan}/"), deadline_us))
        if self.chooser is not None and (probes := self.chooser.probes()):
            self.service.hand_out()  # before what is only tried: handing that over would hold the host
            self._probe(probes)

    def _probe(self, probes: Sequence[Task]) -> None:
        for task in probes:
            probe = next(self._probes)
            alone = replace(task, name=f"{task.subgraph}#{probe}", needs=frozenset(), request=probe)
            self.service.arrive(Request(probe, (alone,), stays=True))

    def _chosen(self) -> str:
        if self.chooser is None:
            return self._fixed
        self.chooser.absent(self._executor.gone())
        return self.chooser.choose().name

    def cancel(self, number: int) -> bool:
        return self.service.cancel(number)

    def turn(self) -> Hashable | None:
        return self.service.turn()

    def _over(self, answer: Answer) -> None:
        if answer.request < FIRST_PROBE:
            self._answered(answer, self._by.pop(answer.request))

    def _heard(self, span: Span) -> None:
        if self.chooser is not None:
            self.chooser.hear(subgraph_of(span.task), span)
        if self._ended is not None:
            self._ended(span)


def durations_us_of(manifests: Mapping[str, Manifest], processors: Sequence[Processor] = ()) -> dict[tuple[str, str], float]:
    """Of all plans, by (PLAN/SUBGRAPH, processor); without what `processors` hold the host for (`handovers_us_of`)."""
    return {key: us for name, one in manifests.items() for key, us in durations_of(one, processors, f"{name}/").items()}


def handovers_us_of(manifests: Mapping[str, Manifest], processors: Sequence[Processor]) -> dict[tuple[str, str], float]:
    """How long the host is held to hand over each sub-graph of all plans, where anybody predicted it to run."""
    return {key: us for name, one in manifests.items() for key, us in handovers_of(one, processors, f"{name}/").items()}


def mover_of(variants: Sequence[Variant], costs: Costs, caution: Caution) -> Mover:
    """What is long and what is long ago is counted in latencies of the fastest plan."""
    latency_us = max(1.0, min(variant.latency_us({}) for variant in variants))
    return Mover(costs, Slowdowns(caution.evidence * latency_us, caution.half_life * latency_us), caution)


def is_probe(task: Task) -> bool:
    return task.request >= FIRST_PROBE


def parted(subgraph: str) -> tuple[str, str]:
    """The plan and the sub-graph in it."""
    plan, _, name = subgraph.partition("/")
    return plan, name


def adapts(manifests: Mapping[str, Manifest], wanted: bool | None, where: str) -> bool:
    """Whether to move between plans: as wanted, else where there are several and all are predicted. Raises BadInput where it cannot."""
    every = [(name, sub) for name, one in manifests.items() for sub in one.subgraphs]
    unknown = [f"{sub.name} of plan {name}" for name, sub in every if sub.processor not in sub.predicted_us]
    if wanted and len(manifests) < 2:
        raise BadInput(f"adaptive with the one plan {next(iter(manifests), MAIN)}, {where}, needed are several: nnstretch export --also")
    if wanted and unknown:
        raise BadInput(f"adaptive without predicted times, {where}, {unknown[0]} has none: nnstretch export --soc")
    return len(manifests) > 1 and not unknown if wanted is None else wanted
