"""Several of one processor: two cores that the chip describes once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from nnstretch.errors import BadInput
from nnstretch.soc import Soc


def multiplied(soc: Soc, names: Sequence[str]) -> tuple[Soc, tuple[str, ...]]:
    """`cpu, cpu` becomes `cpu0, cpu1`, each with a queue of its own; names that are there once stay.

    Copies slow others down as the original does, and each other not at all, since nobody measured that.
    Raises UnknownName for a processor the chip lacks, BadInput where a name is taken.
    """
    counts = Counter(names)
    copies = {name: tuple(f"{name}{i}" for i in range(count)) if count > 1 else (name,) for name, count in counts.items()}
    known = {processor.name for processor in soc.processors}
    if taken := [copy for name, made in copies.items() for copy in made if copy != name and copy in known]:
        raise BadInput(f"processor {taken[0]!r} is there already, SoC {soc.name}, name each processor once")
    processors = tuple(replace(soc.processor(name), name=copy) for name, made in copies.items() for copy in made)
    rest = tuple(processor for processor in soc.processors if processor.name not in counts)
    made = {**copies, **{processor.name: (processor.name,) for processor in rest}}
    contention = {
        frozenset(chosen): factor for members, factor in soc.contention.items() for chosen in product(*(made[name] for name in sorted(members)))
    }
    changed = replace(
        soc,
        processors=processors + rest,
        predictors={copy: soc.predictors[name] for name, each in made.items() for copy in each if name in soc.predictors},
        fusion={copy: soc.fusion[name] for name, each in made.items() for copy in each if name in soc.fusion},
        contention=contention,
    )
    return changed, tuple(processor.name for processor in processors)
