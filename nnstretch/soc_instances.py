"""Several of one processor: two cores that the chip describes once, `cpu` as `cpu0` and `cpu1`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, product

from nnstretch.errors import BadInput
from nnstretch.soc import Soc

DIGITS = "0123456789"


def instantiate(soc: Soc, names: Sequence[str]) -> tuple[Soc, tuple[str, ...]]:
    """Instantiate processors: `cpu, cpu` becomes `cpu0, cpu1`, each with a queue of its own.

    A name that occurs once stays. Copies slow others down as the original does, and each other not
    at all, since nobody measured that. Raises UnknownName for a processor the chip lacks, BadInput
    where a name is taken.
    """
    copies: dict[str, tuple[str, ...]] = {}
    for name, count in Counter(names).items():
        copies[name] = tuple(f"{name}{i}" for i in range(count)) if count > 1 else (name,)
    known = set(soc.processor_names)
    for name, instances in copies.items():
        taken = [instance for instance in instances if instance != name and instance in known]
        if taken:
            raise BadInput(
                f"processor {taken[0]!r} is there already, SoC {soc.name}, name each processor once"
            )
    return replace_processors(soc, copies), tuple(chain.from_iterable(copies.values()))


def instances_named_by(soc: Soc, names: Iterable[str]) -> Soc:
    """Return the chip with the copies that a bundle names, `cpu1` of `cpu`.

    Raises UnknownName for a name that is neither a processor nor a copy of one.
    """
    copies: dict[str, tuple[str, ...]] = {}
    for name in names:
        original = soc.processor(original_name(soc, name)).name
        copies[original] = (*copies.get(original, ()), name)
    return replace_processors(soc, copies)


def original_name(soc: Soc, name: str) -> str:
    """Return the processor that a name is a copy of; the name itself where it is no copy.

    Of `cpu` and `cpu1` it is `cpu1` that `cpu10` is a copy of: beside `cpu1`, `instantiate` makes
    no copy of `cpu` with so high a number.
    """
    prefixes = [known for known in soc.processor_names if name.startswith(known)]
    originals = [known for known in prefixes if not name.removeprefix(known).strip(DIGITS)]
    return max(originals, key=len, default=name)


def processor_kinds(soc: Soc | None, names: Iterable[str]) -> dict[str, str]:
    """Return the kind of each named processor, copies included; nothing without a chip.

    Raises UnknownName for a name that the chip lacks.
    """
    if soc is None:
        return {}
    unique_names = tuple(dict.fromkeys(names))
    chip = instances_named_by(soc, unique_names)
    return {name: chip.processor(name).kind for name in unique_names}


def replace_processors(soc: Soc, copies: Mapping[str, tuple[str, ...]]) -> Soc:
    """Return the chip with copies in place of their originals, then the other processors."""
    instances = dict(copies)
    for processor in soc.processors:
        instances.setdefault(processor.name, (processor.name,))
    pairs: list[tuple[str, str]] = []
    for original, names in instances.items():
        pairs += [(original, name) for name in names]
    contention: dict[frozenset[str], float] = {}
    for members, factor in soc.contention.items():
        for chosen in product(*(instances[name] for name in sorted(members))):
            contention[frozenset(chosen)] = factor
    neighbours = []
    for row in soc.neighbours:
        for name, beside in product(instances[row.processor], instances[row.beside]):
            neighbours.append(replace(row, processor=name, beside=beside))
    return replace(
        soc,
        processors=tuple(replace(soc.processor(old), name=new) for old, new in pairs),
        predictors={new: soc.predictors[old] for old, new in pairs if old in soc.predictors},
        fusion={new: soc.fusion[old] for old, new in pairs if old in soc.fusion},
        contention=contention,
        neighbours=tuple(neighbours),
    )
