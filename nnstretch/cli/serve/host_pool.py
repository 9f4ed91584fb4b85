"""Processors of a server: cores of this host, some of them slower, or an emulated chip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from nnstretch.bundle.manifest import QUEUE_DEPTH
from nnstretch.cli.simulate.pool import Pool, pool_of
from nnstretch.errors import BadInput, closest
from nnstretch.files.workload.workload import WorkloadFile
from nnstretch.schedule.cpu_affinity import affinity
from nnstretch.soc import Processor

if TYPE_CHECKING:
    from nnstretch.soc import Soc


def host_pool(workload: WorkloadFile, soc: Soc | None) -> Pool:
    """Return the processors of a workload; without a chip or a pool, this host's cores.

    Each queues one task behind the one it computes, so that it need not wait for the scheduler.
    """
    pool = pool_of(workload, soc, host_cores())
    processors = [replace(processor, queue_depth=QUEUE_DEPTH) for processor in pool.processors]
    return replace(pool, processors=tuple(processors))


def host_cores() -> tuple[Processor, ...]:
    """Return the cores that this process may use."""
    count = len(affinity() or (0,))
    return tuple(Processor(f"cpu{number}", "cpu", 1) for number in range(count))


def factors_of(workload: WorkloadFile, pool: Pool) -> Mapping[str, float]:
    """Return by processor how many times slower than a core it computes.

    Raises BadInput for a name that the pool lacks, or where a chip says how fast each is.
    """
    factors: dict[str, float] = {}
    known: dict[str, None] = {}
    wanted = workload.factors or {}
    if wanted and pool.soc is not None:
        raise BadInput(
            f"factors with the chip {pool.soc.name}, workload, the chip has speeds of its own"
        )
    for processor in pool.processors:
        names = pool.columns(processor)
        known |= dict.fromkeys(names)
        for name in names:
            if name in wanted:
                factors[processor.name] = wanted[name]
                break
    for name in wanted:
        if name not in known:
            near = closest(name, list(known)) or f"; it has {', '.join(known)}"
            raise BadInput(f"factor of {name}, workload, the pool has none of it{near}")
    return factors
