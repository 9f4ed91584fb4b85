"""The plans of a bundle that serve requests, each loaded once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

from nnstretch.bundle.bundle import Bundle
from nnstretch.bundle.manifest import Manifest, processors_named
from nnstretch.errors import UnknownName
from nnstretch.run.backends.registry import Choice
from nnstretch.run.loaded_network import LoadedNetwork
from nnstretch.run.session import Session
from nnstretch.schedule import critical_path_us, duration_as_placed
from nnstretch.schedule.multi_plan import plans_to_serve
from nnstretch.soc import Processor, Soc


@dataclass(frozen=True, slots=True)
class ServedPlans:
    """Loaded plans, the first of which is the main one, and the processors that may run them."""

    networks: Mapping[str, LoadedNetwork]
    processors: tuple[Processor, ...]
    clock: str
    emulated: bool
    """Whether tasks take their predicted times."""
    dilation: float
    """How many times slower than the chip the real clock goes."""
    backends: Mapping[str, str]
    """Of the main plan, by processor."""
    critical_path_us: float | None
    """Of the main plan; None where times are not predicted."""
    work_us: float | None
    """Its sub-graphs one after another."""

    @property
    def main(self) -> LoadedNetwork:
        """Return the main plan."""
        return next(iter(self.networks.values()))

    @property
    def adaptive(self) -> bool:
        """Return whether requests move between plans."""
        return len(self.networks) > 1

    @property
    def timing(self) -> str:
        """Return what times are: measured, predicted or emulated."""
        if not self.emulated:
            return "measured"
        return "predicted" if self.clock == "virtual" else "emulated"


def open_plans(
    bundle: Bundle,
    soc: Soc | None,
    clock: str,
    backend: Choice,
    plan: str | None,
    disturbed: Iterable[str],
    where: str,
) -> ServedPlans:
    """Load the plans of a bundle; on the real clock also find its dilation.

    Raises UnknownName for a plan or a disturbed processor that the bundle lacks.
    """
    manifests = plans_to_serve(bundle, plan)
    processors = serving_processors(manifests, soc, disturbed, where)
    sessions = {
        name: Session(bundle, soc, clock=clock, backend=backend, plan=name) for name in manifests
    }
    first = next(iter(sessions.values()))
    path_us = work_us = None
    if first.emulated:
        duration_us = duration_as_placed(first.durations_us, first.handovers_us)
        path_us = critical_path_us(first.tasks, duration_us)
        work_us = sum(duration_us(task) for task in first.tasks)
    served = ServedPlans(
        {name: session.network for name, session in sessions.items()},
        processors,
        clock,
        first.emulated,
        max(session.dilation for session in sessions.values()),
        first.backends,
        path_us,
        work_us,
    )
    for session in sessions.values():
        session.close()  # its threads; a server has threads and cores of its own
    return served


def serving_processors(
    manifests: Mapping[str, Manifest], soc: Soc | None, disturbed: Iterable[str], where: str
) -> tuple[Processor, ...]:
    """Return the processors that plans use, and those that could take over.

    Raises UnknownName where a disturbed processor is none of them.
    """
    subs = list(chain.from_iterable(manifest.subgraphs for manifest in manifests.values()))
    predicted = chain.from_iterable(sub.predicted_us for sub in subs)
    names = dict.fromkeys([*(sub.processor for sub in subs), *predicted])
    for name in disturbed:
        if name not in names:
            raise UnknownName(
                f"unknown processor {name!r}, {where}, the bundle knows {', '.join(names)}"
            )
    if soc is not None:
        return tuple(soc.processor(name) for name in names)
    return processors_named(next(iter(manifests.values())), names)
