"""Inherited features, put right without labels.

Measured norms, and last layers fitted to what the original computes.

Segment by segment, in order of depth, on a few batches of training images:
- batch norms get the statistics of what they see now (precise_bn.py);
- the last layer of every branch gets a scale and a shift per channel, or is fitted whole by ridge
  regression to the
  original's features, as channel pruning does (He et al. 2017, "Channel Pruning for Accelerating
  Very Deep Neural Networks").
Each step is kept only if it helps on images that it was not fitted on. No layer is added and no
shape changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import fx, nn

from nnstretch.capture.exported_program import eval_mode
from nnstretch.errors import BadInput
from nnstretch.stretch.weights.branched_module import BranchedSegment, StretchedNetwork
from nnstretch.stretch.weights.feature_matching import (
    FeatureTeacher,
    feature_error,
    flatten_per_channel,
    segments_with_ends,
)
from nnstretch.stretch.weights.foldable_layers import (
    BranchTail,
    branch_tail,
    input_rows,
    record_values,
)
from nnstretch.stretch.weights.least_squares import LayerSamples, RidgeFit, scale_terms
from nnstretch.stretch.weights.precise_bn import precise_bn

Batches = Sequence[torch.Tensor]
AS_IT_WAS, MEASURED, SCALED = "as it was", "measured", "scaled"
RIDGES = (1.0, 0.1, 0.01, 0.001)
RIGHT = 1e-6
"""An error that is rounding: the segment computes the original."""
ROWS = 8_192
"""Positions that a fit looks at, drawn evenly from all images."""
CHUNK = 32
"""Images at once where windows are spread out."""
LEAST = 8
"""Images below which nothing can be both fitted and judged."""


@dataclass(frozen=True, slots=True)
class ReconstructionRow:
    """One cut of the plan."""

    end: str
    met: bool
    """Whether branches met here."""
    before: float
    """How far the inherited network is off.

    0 is the original's features, 1 is as bad as their mean (features.py).
    """
    after: float
    """Both on the images that no weight was fitted on, a quarter of those given."""
    fits: tuple[str, ...]
    """What was done in each branch.

    `as it was`, norms `measured` and no more, `scaled`, or `ridge 0.01` (see least_squares.py).
    """


@torch.no_grad()
def reconstruct(
    network: StretchedNetwork, original: nn.Module, batches: Batches
) -> tuple[ReconstructionRow, ...]:
    """Bring `network` nearer to `original` in place.

    One row for every segment's end, in order of depth.

    `batches` are images [batch, ...] on the device of both, without labels; three quarters of each
    are fitted, the rest judges. State_dict keys and shapes stay. No end gets worse: where one
    would, everything is left as it was. Batches of fewer than 8 images join the one before. Raises
    BadInput for fewer than 8 in all, or where the original is another network.
    """
    batches = join_batches(batches)
    teacher = FeatureTeacher(original, network)
    teacher.bind(batches[0].device)
    before = saved_state(network)
    with eval_mode(network):
        rows = tuple(reconstruct_segments(network, teacher, batches))
        if any(row.after > row.before for row in rows):
            network.load_state_dict(before)
            rows = tuple(
                ReconstructionRow(r.end, r.met, r.before, r.before, (AS_IT_WAS,) * len(r.fits))
                for r in rows
            )
    return rows


def join_batches(batches: Batches) -> list[torch.Tensor]:
    """Join images into batches that can be both fitted and judged.

    Raises BadInput when there are too few images.
    """
    joined: list[torch.Tensor] = []
    for batch in batches:
        if joined and min(len(batch), len(joined[-1])) < LEAST:
            joined[-1] = torch.cat([joined[-1], batch])
        else:
            joined.append(batch)
    if not joined or len(joined[0]) < LEAST:
        raise BadInput(
            f"rescaling needs at least {LEAST} images, given {sum(map(len, batches))}, a quarter of"
            " them judges"
        )
    return joined


def reconstruct_segments(
    network: StretchedNetwork, teacher: FeatureTeacher, batches: Batches
) -> Iterator[ReconstructionRow]:
    """Settle one segment after another, each reading what those before it write by now."""
    untouched = now = truth = list(batches)
    for (end, meeting), section in zip(segments_with_ends(network), teacher.sections, strict=True):
        entered, truth = truth, [section(x) for x in truth]
        untouched = [meeting(x) for x in untouched]
        before = judged_error(meeting, untouched, truth)
        step = SegmentFit(meeting, section, now, entered, truth)
        fits = step.reconstruct_segment()
        now = [meeting(x) for x in now]
        yield ReconstructionRow(
            end, len(meeting.branches) > 1, before, judged_error(meeting, now, truth), fits
        )


def judged_error(meeting: BranchedSegment, features: Batches, truth: Batches) -> float:
    """Return the error on the images that judge."""
    mine, right = (torch.cat([judging_rows(x) for x in xs]) for xs in (features, truth))
    return float(feature_error(mine, right, meeting.stands_for, meeting.axis))


def fitting_rows(x: torch.Tensor) -> torch.Tensor:
    """Return the rows that the fit sees: three of four."""
    return x[: len(x) - len(x) // 4]


def judging_rows(x: torch.Tensor) -> torch.Tensor:
    """Return the rows that judge the fit: one of four."""
    return x[len(x) - len(x) // 4 :]


@dataclass(frozen=True, eq=False)
class SegmentFit:
    """One segment, what it reads, and what the original reads and writes there."""

    meeting: BranchedSegment
    section: fx.GraphModule
    now: Batches
    entered: Batches
    truth: Batches

    def reconstruct_segment(self) -> tuple[str, ...]:
        """Improve the segment in place; return what was done in each branch."""
        start, none = saved_state(self.meeting), (AS_IT_WAS,) * len(self.meeting.branches)
        tries = [(self.judged_error(), none, start)]
        if tries[0][0] < RIGHT:
            return none
        for measured in (False, True):
            self.meeting.load_state_dict(start)
            if measured:
                precise_bn(self.meeting, self.now)
            fits = self.fit_branches(MEASURED if measured else AS_IT_WAS)
            tries.append((self.judged_error(), fits, saved_state(self.meeting)))
        _, fits, state = min(tries, key=lambda t: t[0])
        self.meeting.load_state_dict(state)
        return fits

    def judged_error(self) -> float:
        """Return the error at the meeting point on the judging rows."""
        return judged_error(self.meeting, [self.meeting(x) for x in self.now], self.truth)

    def fit_branches(self, otherwise: str) -> tuple[str, ...]:
        """Fit every branch; what was done, `otherwise` where nothing helped."""
        aim = branch_tail(self.section)
        done, at = [], 0
        for branch in self.meeting.branches:
            assert isinstance(branch, fx.GraphModule)
            width = branch(self.now[0][:1]).shape[self.meeting.axis]
            done.append(
                self.fit_branch(
                    branch, branch_tail(branch), aim, self.meeting.stands_for[at : at + width]
                )
                or otherwise
            )
            at += width
        return tuple(done)

    def fit_branch(
        self, branch: fx.GraphModule, tail: BranchTail, aim: BranchTail, channels: torch.Tensor
    ) -> str:
        """Fit a branch's end to the original's channels.

        Which of the ways was best, empty where none helped.
        """
        place = aim.value_before(tail.behind) if tail.terms else None
        samples = self.draw_samples(branch, tail, place, channels) if place is not None else None
        if samples is None:
            return ""
        ways: dict[str, Callable[[], None]] = {SCALED: lambda: scale_terms(tail.terms, samples)}
        if any(term.layer is not None for term in tail.terms):
            whole = RidgeFit(tail.terms, samples)
            ways |= {f"ridge {ridge:g}": lambda ridge=ridge: whole.apply(ridge) for ridge in RIDGES}  # type: ignore[misc]
        axis, right = self.meeting.axis, torch.cat([judging_rows(t) for t in self.truth])

        def judge() -> float:
            return float(
                feature_error(
                    torch.cat([branch(judging_rows(x)) for x in self.now]), right, channels, axis
                )
            )

        return keep_best_attempt(branch, judge, ways)

    def draw_samples(
        self, branch: fx.GraphModule, tail: BranchTail, place: str, channels: torch.Tensor
    ) -> LayerSamples | None:
        """Draw rows at positions drawn alike in every fit.

        None where branch and original have other shapes before their ends.
        """
        names = frozenset(
            {tail.place} | {t.reads for t in tail.terms} | {t.writes for t in tail.terms}
        )
        generator = torch.Generator().manual_seed(0)
        share = max(1, ROWS // max(1, sum(len(fitting_rows(x)) for x in self.now)))
        columns: list[list[torch.Tensor]] = []
        for x, t in zip(chunks(self.now), chunks(self.entered), strict=True):
            seen = record_values(branch, x, names)
            target = record_values(self.section, t, frozenset({place}))[place]
            mine = seen[tail.place]
            axis = self.meeting.axis
            if (
                target.dim() != mine.dim()
                or mine.shape[axis] != len(channels)
                or int(channels.max()) >= target.shape[axis]
            ):
                return None
            rows = flatten_per_channel(target, axis)[:, channels] - flatten_per_channel(mine, axis)
            picked = torch.randperm(len(rows), generator=generator)[: share * len(x)].to(
                rows.device
            )
            read = [
                input_rows(term, seen[term.reads]) for term in tail.terms if term.layer is not None
            ]
            written = [flatten_per_channel(seen[term.writes], axis) for term in tail.terms]
            if any(len(r) != len(rows) for r in (*read, *written)):
                return None
            columns.append([v[picked] for v in (rows, *read, *written)])
        missing, *columns_ = (torch.cat(parts) for parts in zip(*columns, strict=True))
        fed = iter(columns_)
        return LayerSamples(
            tuple(next(fed) if t.layer is not None else None for t in tail.terms),
            tuple(fed),
            missing,
        )


def chunks(batches: Batches) -> Iterator[torch.Tensor]:
    """Yield the fitting rows in chunks."""
    for batch in batches:
        yield from fitting_rows(batch).split(CHUNK)


def keep_best_attempt(
    module: nn.Module, judge: Callable[[], float], ways: dict[str, Callable[[], None]]
) -> str:
    """Try ways from the same start and keep the one with the least error.

    Its name, empty for the start itself.

    Ways come in order of how much they change; where a later one is worse than the one before it,
    the rest is not tried.
    """
    start = saved_state(module)
    best, least, state = "", judge(), start
    last = float("inf")
    for name, change in ways.items():
        change()
        error = judge()
        if error < least:
            best, least, state = name, error, saved_state(module)
        module.load_state_dict(start)
        if name != SCALED and error > last:
            break
        last = error if name != SCALED else last
    module.load_state_dict(state)
    return best


def saved_state(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return a copy of a module's state."""
    return {key: value.clone() for key, value in module.state_dict().items()}


__all__ = ["ReconstructionRow", "precise_bn", "reconstruct"]
