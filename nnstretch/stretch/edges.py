"""Every way to run one segment, as arrays: latency, MACs, parameters and merged width of each choice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from nnstretch.graph import TensorSpec
from nnstretch.plan import Branch
from nnstretch.stretch.space import Array, Options, Space
from nnstretch.structure.cuts import OUTPUT, Cut


@dataclass(frozen=True)
class Choices:
    """Choices that no constraint refuses."""

    latency_us: Array
    macs: Array
    params: Array
    width: Array
    """Channels handed to the next segment."""
    describe: Callable[[int], tuple[Branch, ...]]
    """The branches of choice number k."""

    def __len__(self) -> int:
        return len(self.latency_us)


def pixels(spec: TensorSpec, axis: int) -> int:
    return spec.elements // spec.shape[axis]


@dataclass
class Edges:
    """Prices segments of one space; counts what each constraint refuses."""

    space: Space
    refused: Counter[str]

    def __post_init__(self) -> None:
        self.specs = self.space.stretcher.graph.specs()

    def axis(self, cut: Cut) -> int:
        return self.space.stretcher.whole.axis(cut.value)

    def bytes_of(self, cut: Cut, width: Array | int) -> Array | float:
        return pixels(self.specs[cut.value], self.axis(cut)) * self.space.pricer.soc.element_bytes * width

    def original_us(self, start: Cut, end: Cut) -> tuple[float, int]:
        piece = self.space.stretcher.piece(start, end, None)
        return min(self.space.pricer.graph(piece.graph, p).latency_us for p in self.space.processors), piece.graph.macs

    def choices(self, start: Cut, end: Cut, width_in: int, counting: bool) -> Choices:
        """All admissible ways to run the stretch between two cuts on a tensor of `width_in` channels."""
        found = self.sequential(start, end, width_in)
        if end.name != OUTPUT:
            original_us, original_macs = self.original_us(start, end)
            if original_macs:
                options = {p: self.space.branches(start, end, p, width_in) for p in self.space.processors}
                for pair in combinations(self.space.processors, 2):
                    self.pairs(pair, options, (start, end, width_in), (original_us, original_macs), found, counting)
        return joined(found)

    def sequential(self, start: Cut, end: Cut, width_in: int) -> list[Choices]:
        """The original layers on one processor."""
        space, soc = self.space, self.space.pricer.soc
        full = self.specs[end.value].shape[self.axis(end)]
        alone = space.single(start, end, width_in)
        if alone is None:
            return []
        rows: list[Choices] = []
        for name in space.processors:
            processor = soc.processor(name)
            moved = processor.copy_in.cost_us(float(self.bytes_of(start, width_in))) + processor.copy_out.cost_us(
                float(self.bytes_of(end, full))
            )
            total = moved + alone.compute_us[name] + processor.sync_us
            rows.append(Choices(np.array([total]), np.array([alone.macs]), np.array([alone.params]), np.array([full]), Alone(name)))
        return rows

    def pairs(
        self,
        pair: tuple[str, str],
        options: dict[str, Options | None],
        where: tuple[Cut, Cut, int],
        original: tuple[float, int],
        found: list[Choices],
        counting: bool,
    ) -> None:
        """Two branches at once: every depth and width of one with every depth and width of the other."""
        one, two = options[pair[0]], options[pair[1]]
        if one is None or two is None:
            return
        start, end, width_in = where
        soc = self.space.pricer.soc
        slowdown = soc.slowdown(frozenset(pair))
        sides = []
        for name, option in zip(pair, (one, two), strict=True):
            processor = soc.processor(name)
            copy_in = processor.copy_in.cost_us(float(self.bytes_of(start, width_in)))
            copy_out = processor.copy_out.fixed_us + processor.copy_out.us_per_kib * self.bytes_of(end, option.width) / 1024
            sides.append((copy_in + slowdown * option.compute_us + copy_out, copy_in + copy_out))
        slowest = np.maximum(sides[0][0][:, None], sides[1][0][None, :])
        copies = np.maximum(sides[0][1][:, None], sides[1][1][None, :])
        width = one.width[:, None] + two.width[None, :]
        sync_us = max(soc.processor(name).sync_us for name in pair)
        merge = soc.merge.fixed_us + soc.merge.us_per_kib * self.bytes_of(end, width) / 1024
        macs = one.macs[:, None] + two.macs[None, :]
        largest = np.maximum(one.macs[:, None], two.macs[None, :])
        allowed = self.allowed(slowest, copies + sync_us + merge, macs, largest, original, counting)
        rows, columns = np.nonzero(allowed)
        if not len(rows):
            return
        latency = (slowest + sync_us + merge)[rows, columns]
        params = one.params[rows] + two.params[columns]
        found.append(Choices(latency, macs[rows, columns], params, width[rows, columns], Both(pair, one, two, rows, columns)))

    def allowed(
        self, slowest: Array, communication: Array, macs: Array, largest: Array, original: tuple[float, int], counting: bool
    ) -> Array:
        """The constraints of constraints.py over whole arrays; each refusal is counted under the first rule that makes it."""
        limits, (original_us, original_macs) = self.space.limits, original
        rules = {
            "cost_amortised": communication <= limits.alpha * original_us,
            "no_stragglers": slowest <= limits.beta * original_us,
            "main_branch": largest >= limits.main_macs * original_macs,
            "capacity": macs >= limits.segment_macs * original_macs,
        }
        left = np.ones(slowest.shape, dtype=bool)
        for name, passes in rules.items():
            if counting:
                self.refused[name] += int((left & ~passes).sum())
            left &= passes
        return left


@dataclass(frozen=True)
class Alone:
    processor: str

    def __call__(self, k: int) -> tuple[Branch, ...]:
        return (Branch(self.processor),)


@dataclass(frozen=True)
class Both:
    pair: tuple[str, str]
    one: Options
    two: Options
    rows: Array
    columns: Array

    def __call__(self, k: int) -> tuple[Branch, ...]:
        r, c = self.rows[k], self.columns[k]
        first = Branch(self.pair[0], int(self.one.depth[r]), int(self.one.width[r]))
        return (first, Branch(self.pair[1], int(self.two.depth[c]), int(self.two.width[c])))


@dataclass(frozen=True)
class Either:
    """Several lists of choices in a row."""

    parts: tuple[Choices, ...]

    def __call__(self, k: int) -> tuple[Branch, ...]:
        for part in self.parts:
            if k < len(part):
                return part.describe(k)
            k -= len(part)
        raise IndexError(k)


def joined(parts: list[Choices]) -> Choices:
    if not parts:
        empty = np.zeros(0)
        return Choices(empty, empty, empty, empty.astype(int), Either(()))
    return Choices(
        np.concatenate([p.latency_us for p in parts]),
        np.concatenate([p.macs for p in parts]),
        np.concatenate([p.params for p in parts]),
        np.concatenate([p.width for p in parts]),
        Either(tuple(parts)),
    )
