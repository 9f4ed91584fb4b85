"""Several of one processor: two cores that the chip describes once, `cpu` as `cpu0` and `cpu1`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product

from nnstretch.errors import BadInput
from nnstretch.soc import Soc

DIGITS = "0123456789"


def instantiate(soc: Soc, names: Sequence[str]) -> tuple[Soc, tuple[str, ...]]:
    """Instantiate processors: `cpu, cpu` becomes `cpu0, cpu1`, each with a queue of its own.

    Names that are there once stay.

    Copies slow others down as the original does, and each other not at all, since nobody measured
    that. Raises UnknownName for a processor the chip lacks, BadInput where a name is taken.
    """
    counts = Counter(names)
    copies = {
        name: tuple(f"{name}{i}" for i in range(count)) if count > 1 else (name,)
        for name, count in counts.items()
    }
    known = {processor.name for processor in soc.processors}
    if taken := [
        copy for name, made in copies.items() for copy in made if copy != name and copy in known
    ]:
        raise BadInput(
            f"processor {taken[0]!r} is there already, SoC {soc.name}, name each processor once"
        )
    return replace_processors(soc, copies), tuple(copy for made in copies.values() for copy in made)


def instances_named_by(soc: Soc, names: Iterable[str]) -> Soc:
    """Return the chip with the copies that a bundle names, `cpu1` of `cpu`.

    Raises UnknownName for a name that is neither.
    """
    known, copies = {processor.name for processor in soc.processors}, dict[str, tuple[str, ...]]()
    for name in names:
        original = name if name in known else name.rstrip(DIGITS)
        soc.processor(original if original in known else name)
        copies[original] = (*copies.get(original, ()), name)
    return replace_processors(soc, copies)


def processor_kinds(soc: Soc | None, names: Iterable[str]) -> dict[str, str]:
    """Return the kind of each named processor, copies included; nothing without a chip.

    Raises UnknownName for a name that the chip lacks.
    """
    if soc is None:
        return {}
    chip = instances_named_by(soc, names := tuple(dict.fromkeys(names)))
    return {name: chip.processor(name).kind for name in names}


def replace_processors(soc: Soc, copies: Mapping[str, tuple[str, ...]]) -> Soc:
    """Return the chip with copies in place of their originals, these first; the other processors
    stay.
    """
    others = tuple(processor for processor in soc.processors if processor.name not in copies)
    instances = {**copies, **{processor.name: (processor.name,) for processor in others}}
    contention = {
        frozenset(chosen): factor
        for members, factor in soc.contention.items()
        for chosen in product(*(instances[name] for name in sorted(members)))
    }
    return replace(
        soc,
        processors=tuple(
            replace(soc.processor(name), name=copy)
            for name, each in copies.items()
            for copy in each
        )
        + others,
        predictors={
            copy: soc.predictors[name]
            for name, each in instances.items()
            for copy in each
            if name in soc.predictors
        },
        fusion={
            copy: soc.fusion[name]
            for name, each in instances.items()
            for copy in each
            if name in soc.fusion
        },
        contention=contention,
    )
