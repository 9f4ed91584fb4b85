"""The processors of a workload: of a chip, or of the types that it names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nnstretch.errors import BadInput, closest
from nnstretch.files.workload.workload import WorkloadFile
from nnstretch.soc import Processor, Soc
from nnstretch.soc_instances import instantiate
from nnstretch.task import WorkKey


@dataclass(frozen=True, slots=True)
class Pool:
    """Processors, and the chip that they are of, if it is one."""

    processors: tuple[Processor, ...]
    soc: Soc | None = None
    copies: Mapping[str, str] = field(default_factory=dict)
    """By processor, which one of the chip it is a copy of, where the pool names that twice."""

    def original(self, processor: Processor) -> str:
        """Return what a processor is one of: its original on the chip, or its type without one.

        A name that only looks like that of a copy, cpu1 beside cpu, is an original of its own.
        """
        if self.soc is None:
            return processor.kind
        return self.copies.get(processor.name, processor.name)

    def has(self, column: str) -> bool:
        """Return whether costs of a name or type count for any processor."""
        return any(column in self.columns(processor) for processor in self.processors)

    def columns(self, processor: Processor) -> tuple[str, str, str]:
        """Return what a processor's costs may be given by; the first that is there counts."""
        return processor.name, self.original(processor), processor.kind

    def times_us(
        self, work: WorkKey, costs_us: Mapping[str, float], where: str
    ) -> dict[tuple[WorkKey, str], float]:
        """Return the times of work on every processor of which a cost is known.

        A cost is by processor, by what it is a copy of, or by type; the first of these that is
        there counts. Raises BadInput for a cost of none of them.
        """
        times_us: dict[tuple[WorkKey, str], float] = {}
        known: dict[str, None] = {}
        for processor in self.processors:
            columns = self.columns(processor)
            known |= dict.fromkeys(columns)
            for column in columns:
                if column in costs_us:
                    times_us[work, processor.name] = costs_us[column]
                    break
        for column in costs_us:
            if column not in known:
                near = closest(column, list(known)) or f"; it has {', '.join(known)}"
                raise BadInput(f"{where} on {column}, workload, the pool has none of it{near}")
        return times_us


def pool_of(workload: WorkloadFile, soc: Soc | None, otherwise: tuple[Processor, ...]) -> Pool:
    """Return the processors of a workload.

    With a chip: its processors that the pool names, or all where there is no pool. Without a chip:
    so many of each type that the pool names, or `otherwise`, those of a task graph. Raises
    UnknownName for a processor that the chip lacks, BadInput where there is neither chip, pool nor
    task graph.
    """
    if soc is not None:
        counts = workload.pool or dict.fromkeys(soc.processor_names, 1)
        names: list[str] = []
        for name, count in counts.items():
            names += [name] * count
        chip, instances = instantiate(soc, names)
        copies = dict(zip(instances, names, strict=True))
        return Pool(tuple(chip.processor(name) for name in instances), chip, copies)
    if workload.pool is None:
        if not otherwise:
            raise BadInput("no processors, workload, needed is soc, --soc or pool")
        return Pool(otherwise)
    processors: list[Processor] = []
    for kind, count in workload.pool.items():
        for number in range(count):
            name = f"{kind}{number}" if count > 1 else kind
            processors.append(Processor(name, kind, 1))
    return Pool(tuple(processors))
