"""After B2: whether the parts of a group pay.

A group in parts loads its weights once for each part, and what another group leaves in pieces is
made one for each part that reads several; computed whole, its tensors leave the local buffers and
come back. Where loading again takes as long as moving every one of them, no parts pay
and the group is computed whole: small buffers would ask for hundreds of parts. A tensor between a
whole group and its neighbour, and an input or output of the network, lies outside of the local
buffers anyway, so it is no reason for parts. Loading may hide behind computing, so a margin
lets parts cost some times as much. GraphTurbo names a cost model at this place and does not say
which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain

from nnstretch.accelerate.chip_graph import ChipGraph
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.operator_work import weight_bytes
from nnstretch.accelerate.steps.peak import group_peak, lifetimes
from nnstretch.accelerate.steps.slicing import slice_groups
from nnstretch.chip.instances import DDR, LOCAL, SHARED, Group, Split


@dataclass(frozen=True, slots=True)
class PartsWorth:
    """What parts of a group cost and save."""

    group: Group
    again_us: float
    """Loading again for each part but the first."""
    moves_us: float
    """Moving every tensor out and in where the group is computed whole."""

    def pays(self, margin: float) -> bool:
        """Return whether parts cost less than a margin times what they save at most."""
        return self.again_us < margin * self.moves_us

    def __str__(self) -> str:
        group = self.group
        return (
            f"{group.operators[0]}..{group.operators[-1]}: {group.split.factor} parts load"
            f" {self.again_us:.1f} us again, moving its tensors out and in takes"
            f" {self.moves_us:.1f} us"
        )


def whole_where_parts_do_not_pay(
    chip: ChipGraph, groups: Sequence[Group], rates: ChipRates, margin: float = 1.0
) -> tuple[Group, ...]:
    """Return groups of which those are whole whose parts do not pay, whole neighbours as one."""
    refused = {id(worth.group) for worth in parts_that_do_not_pay(chip, groups, rates, margin)}
    if not refused:
        return tuple(groups)
    runs: list[list[Group]] = []
    for group in groups:
        whole = id(group) in refused or group.split.factor == 1
        follows = bool(runs) and (id(runs[-1][-1]) in refused or runs[-1][-1].split.factor == 1)
        if whole and follows:
            runs[-1].append(group)
        else:
            runs.append([group])
    return tuple(
        joined(chip, run, number, any(id(group) in refused for group in run))
        for number, run in enumerate(runs)
    )


def joined(chip: ChipGraph, run: Sequence[Group], number: int, whole: bool) -> Group:
    """Return neighbours in order as one group that is computed whole, one alone as it is."""
    if not whole and len(run) == 1:
        return replace(run[0], name=f"g{number}")
    names = chain.from_iterable(group.operators for group in run)
    operators = tuple(sorted(names, key=chip.position.__getitem__))
    split = Split(1, 0, len(operators))
    return Group(f"g{number}", operators, split, group_peak(chip, operators))


def parts_that_do_not_pay(
    chip: ChipGraph, groups: Sequence[Group], rates: ChipRates, margin: float = 1.0
) -> list[PartsWorth]:
    """Return the groups whose parts cost more than a margin times what they save at most.

    Each that goes whole puts its tensors outside, so its neighbours are asked again.
    """
    parted = [group for group in groups if group.split.factor > 1]
    refused: list[PartsWorth] = []
    outside = ends_of(chip)
    while True:
        pieces = set(chain.from_iterable(group.operators for group in parted))
        worths = [
            PartsWorth(
                group,
                loads_again_us(chip, group, rates, outside, pieces),
                moves_us(chip, group, rates, outside),
            )
            for group in parted
        ]
        losing = [worth for worth in worths if not worth.pays(margin)]
        if not losing:
            return refused
        refused += losing
        parted = [worth.group for worth in worths if worth.pays(margin)]
        for worth in losing:
            for name in worth.group.operators:
                outside.update((name, *chip.reads[name]))


def ends_of(chip: ChipGraph) -> set[str]:
    """Return the network's inputs and outputs, which lie in DDR whatever the schedule."""
    return {value.name for value in chip.graph.inputs} | set(chip.outputs)


def loads_again_us(
    chip: ChipGraph, group: Group, rates: ChipRates, outside: Set[str], pieces: Set[str]
) -> float:
    """Return the time to load what a group's parts load more often than the whole.

    That is weights, of tensors that lie outside what several parts read, and of tensors that other
    groups leave in pieces what is made one for each of several parts.
    """
    machine = rates.accelerator
    weights = -sum(weight_bytes(chip, name) for name in group.operators)
    total_us = 0.0
    read: Counter[str] = Counter()
    for instance in slice_groups(chip, [group]):
        weights += sum(weight_bytes(chip, name, box) for name, box in instance.boxes.items())
        for name, box in instance.reads.items():
            read[name] += chip.bytes_of(name, box)
    for name in read:
        again = max(0, read[name] - chip.bytes_of(name))
        if name in outside:
            fits = chip.bytes_of(name) <= machine.shared_bytes and name not in ends_of(chip)
            scope = SHARED if fits else DDR
            total_us += rates.transfer_us(again, scope, LOCAL, machine.cores)
        elif name in pieces:
            total_us += rates.exchange_us(again / machine.cores, machine.cores)
    return total_us + rates.transfer_us(max(0, weights), DDR, LOCAL, machine.cores)


def moves_us(chip: ChipGraph, group: Group, rates: ChipRates, outside: Set[str]) -> float:
    """Return the most time that moving tensors takes where a group is computed whole.

    Each goes out once and comes back for each reader: to the global buffer where the group's peak
    fits there, else to DDR. No parts save more than that.
    """
    machine = rates.accelerator
    scope = SHARED if group.peak_bytes <= machine.shared_bytes else DDR
    moved = 0
    for item in lifetimes(chip, group.operators):
        if item.tensor not in outside:
            moved += (1 + len(chip.readers.get(item.tensor, ()))) * item.size_bytes
    return rates.transfer_us(moved, LOCAL, scope, machine.cores)
