"""One branch's last layers, fitted to the original's features and judged on other images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import fx, nn

from nnstretch.stretch.weights.feature_matching import feature_error, flatten_per_channel
from nnstretch.stretch.weights.foldable_layers import (
    BranchTail,
    branch_tail,
    input_rows,
    record_values,
)
from nnstretch.stretch.weights.least_squares import LayerSamples, RidgeFit, scale_terms

Batches = Sequence[torch.Tensor]
SCALED = "scaled"
RIDGES = (1.0, 0.1, 0.01, 0.001)
MAX_ROWS = 8_192
"""Positions that a fit looks at, drawn evenly from all images."""
CHUNK = 32
"""Images at once where windows are spread out."""


def fitting_rows(x: torch.Tensor) -> torch.Tensor:
    """Return the rows that a fit sees: three of four."""
    return x[: len(x) - len(x) // 4]


def judging_rows(x: torch.Tensor) -> torch.Tensor:
    """Return the rows that judge a fit: one of four."""
    return x[len(x) - len(x) // 4 :]


def error_on_judging_images(
    features: Batches, truth: Batches, stands_for: torch.Tensor, axis: int
) -> float:
    """Return the error of features on the images that judge."""
    student = torch.cat([judging_rows(x) for x in features])
    teacher = torch.cat([judging_rows(x) for x in truth])
    return float(feature_error(student, teacher, stands_for, axis))


def saved_state(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return a copy of a module's state."""
    return {key: value.clone() for key, value in module.state_dict().items()}


@dataclass(frozen=True, eq=False)
class BranchFit:
    """A branch with its inputs, and the inputs and outputs of the original layers."""

    branch: fx.GraphModule
    section: fx.GraphModule
    channels: torch.Tensor
    """[channels of the branch], int64: the original channel that each one replaces."""
    axis: int
    now: Batches
    entered: Batches
    truth: Batches

    def fit(self, target: BranchTail) -> str:
        """Fit the branch's end to the original's; return what was done, empty if nothing helped."""
        tail = branch_tail(self.branch)
        value = target.value_before(tail.behind) if tail.terms else None
        samples = self.draw_samples(tail, value) if value is not None else None
        if samples is None:
            return ""
        changes: dict[str, Callable[[], None]] = {SCALED: partial(scale_terms, tail.terms, samples)}
        if any(term.layer is not None for term in tail.terms):
            fit = RidgeFit(tail.terms, samples)
            changes |= {f"ridge {ridge:g}": partial(fit.apply, ridge) for ridge in RIDGES}
        return keep_best_change(self.branch, self.error, changes)

    def error(self) -> float:
        """Return the branch's error on the images that judge."""
        features = torch.cat([self.branch(judging_rows(x)) for x in self.now])
        truth = torch.cat([judging_rows(x) for x in self.truth])
        return float(feature_error(features, truth, self.channels, self.axis))

    def draw_samples(self, tail: BranchTail, value: str) -> LayerSamples | None:
        """Draw rows at positions drawn alike in every fit; None where the shapes differ."""
        generator = torch.Generator().manual_seed(0)
        images = sum(len(fitting_rows(x)) for x in self.now)
        positions = max(1, MAX_ROWS // max(1, images))
        drawn: list[list[torch.Tensor]] = []
        for x, original in zip(chunks(self.now), chunks(self.entered), strict=True):
            target = record_values(self.section, original, frozenset({value}))[value]
            columns = self.columns(tail, x, target)
            if columns is None:
                return None
            rows = torch.randperm(len(columns[0]), generator=generator)[: positions * len(x)]
            rows = rows.to(columns[0].device)
            drawn.append([column[rows] for column in columns])
        missing, *remaining = (torch.cat(parts) for parts in zip(*drawn, strict=True))
        later = iter(remaining)
        read = tuple(next(later) if term.layer is not None else None for term in tail.terms)
        return LayerSamples(read, tuple(later), missing)

    def columns(
        self, tail: BranchTail, x: torch.Tensor, target: torch.Tensor
    ) -> list[torch.Tensor] | None:
        """Return [rows, ...] of what is missing, read and written; None where the shapes differ."""
        names = {tail.total}
        for term in tail.terms:
            names |= {term.reads, term.writes}
        values = record_values(self.branch, x, frozenset(names))
        total = values[tail.total]
        if target.dim() != total.dim() or total.shape[self.axis] != len(self.channels):
            return None
        if int(self.channels.max()) >= target.shape[self.axis]:
            return None
        if any(values[term.writes].shape != total.shape for term in tail.terms):
            return None  # a summand that is repeated along the sum has no scale per channel
        wanted = flatten_per_channel(target, self.axis)[:, self.channels]
        columns = [wanted - flatten_per_channel(total, self.axis)]
        for term in tail.terms:
            if term.layer is not None:
                columns.append(input_rows(term, values[term.reads]))
        for term in tail.terms:
            columns.append(flatten_per_channel(values[term.writes], self.axis))
        return columns if len({len(column) for column in columns}) == 1 else None


def chunks(batches: Batches) -> Iterator[torch.Tensor]:
    """Yield the fitting rows in chunks."""
    for batch in batches:
        yield from fitting_rows(batch).split(CHUNK)


def keep_best_change(
    module: nn.Module, judge: Callable[[], float], changes: Mapping[str, Callable[[], None]]
) -> str:
    """Try changes from one start and keep the best; return its name, empty for the start itself.

    Changes come in order of strength; the first that is worse than the change before it ends the
    trials.
    """
    start = saved_state(module)
    best = ""
    least = judge()
    state = start
    last = float("inf")
    for name, change in changes.items():
        change()
        error = judge()
        if error < least:
            best = name
            least = error
            state = saved_state(module)
        module.load_state_dict(start)
        if name == SCALED:
            continue
        if error > last:
            break
        last = error
    module.load_state_dict(state)
    return best
