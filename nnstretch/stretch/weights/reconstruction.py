"""Inherited features, put right without labels: measured norms, fitted last layers.

Segment by segment, in order of depth, on a few batches of training images:
- batch norms get the statistics of what they see now (precise_bn.py);
- the last layer of every branch gets a scale and a shift per channel, or is fitted whole by ridge
  regression to the original's features, as channel pruning does (He et al. 2017, "Channel Pruning
  for Accelerating Very Deep Neural Networks"); see layer_fit.py.
Each step is kept only if it helps on images that it was not fitted on. No layer is added and no
shape changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import fx, nn

from nnstretch.capture.exported_program import eval_mode
from nnstretch.errors import BadInput
from nnstretch.stretch.weights.branched_module import BranchedSegment, StretchedNetwork
from nnstretch.stretch.weights.feature_matching import FeatureTeacher, segments_with_ends
from nnstretch.stretch.weights.foldable_layers import branch_tail
from nnstretch.stretch.weights.layer_fit import (
    Batches,
    BranchFit,
    error_on_judging_images,
    saved_state,
)
from nnstretch.stretch.weights.precise_bn import precise_bn

AS_IT_WAS = "as it was"
MEASURED = "measured"
ROUNDING_ERROR = 1e-6
"""An error at which the segment computes the original."""
MIN_IMAGES = 8
"""Images below which nothing can be both fitted and judged."""


@dataclass(frozen=True, slots=True)
class ReconstructionRow:
    """Errors of the features at one cut of the plan, on images that no weight was fitted on."""

    end: str
    met: bool
    """Whether branches met here."""
    before: float
    """Error of the inherited network: 0 is the original's features, 1 as bad as their mean."""
    after: float
    fits: tuple[str, ...]
    """Per branch `as it was`, norms `measured` and no more, `scaled`, or `ridge 0.01`."""


@torch.no_grad()
def reconstruct(
    network: StretchedNetwork, original: nn.Module, batches: Batches
) -> tuple[ReconstructionRow, ...]:
    """Bring `network` nearer to `original` in place; one row for every segment's end.

    `batches` are images [batch, ...] on the device of both, without labels; three quarters of each
    are fitted, the remaining ones judge. State_dict keys and shapes stay. No end gets worse: where
    one would, everything is left as it was. Batches of fewer than 8 images join the one before.
    Raises BadInput for fewer than 8 in all, or where the original is another network.
    """
    batches = join_batches(batches)
    teacher = FeatureTeacher(original, network)
    teacher.bind(batches[0].device)
    before = saved_state(network)
    with eval_mode(network):
        rows = list(reconstruct_segments(network, teacher, batches))
        if any(row.after > row.before for row in rows):
            network.load_state_dict(before)
            for i, row in enumerate(rows):
                rows[i] = replace(row, after=row.before, fits=(AS_IT_WAS,) * len(row.fits))
    return tuple(rows)


def join_batches(batches: Batches) -> list[torch.Tensor]:
    """Join batches too small to be fitted and judged. Raises BadInput for too few images."""
    joined: list[torch.Tensor] = []
    for batch in batches:
        if joined and min(len(batch), len(joined[-1])) < MIN_IMAGES:
            joined[-1] = torch.cat([joined[-1], batch])
        else:
            joined.append(batch)
    if not joined or len(joined[0]) < MIN_IMAGES:
        raise BadInput(
            f"rescaling needs at least {MIN_IMAGES} images, given {sum(map(len, batches))}, a"
            " quarter of them judges"
        )
    return joined


def reconstruct_segments(
    network: StretchedNetwork, teacher: FeatureTeacher, batches: Batches
) -> Iterator[ReconstructionRow]:
    """Fit segments in order, each on the outputs of the fitted segments before it."""
    untouched = list(batches)
    now = untouched
    truth = untouched
    for (end, segment), section in zip(segments_with_ends(network), teacher.sections, strict=True):
        entered = truth
        truth = [section(x) for x in truth]
        untouched = [segment(x) for x in untouched]
        before = segment_error(segment, untouched, truth)
        fits = SegmentFit(segment, section, now, entered, truth).reconstruct_segment()
        now = [segment(x) for x in now]
        after = segment_error(segment, now, truth)
        yield ReconstructionRow(end, len(segment.branches) > 1, before, after, fits)


def segment_error(segment: BranchedSegment, features: Batches, truth: Batches) -> float:
    """Return the error of a segment's features on the images that judge."""
    return error_on_judging_images(features, truth, segment.stands_for, segment.axis)


@dataclass(frozen=True, eq=False)
class SegmentFit:
    """A segment with its inputs, and the inputs and outputs of the original layers."""

    segment: BranchedSegment
    section: fx.GraphModule
    now: Batches
    entered: Batches
    truth: Batches

    def reconstruct_segment(self) -> tuple[str, ...]:
        """Improve the segment in place; return what was done in each branch."""
        start = saved_state(self.segment)
        best = (AS_IT_WAS,) * len(self.segment.branches)
        least = self.error()
        if least < ROUNDING_ERROR:
            return best
        state = start
        for default in (AS_IT_WAS, MEASURED):
            self.segment.load_state_dict(start)
            if default == MEASURED:
                precise_bn(self.segment, self.now)
            fits = self.fit_branches(default)
            error = self.error()
            if error < least:
                best = fits
                least = error
                state = saved_state(self.segment)
        self.segment.load_state_dict(state)
        return best

    def error(self) -> float:
        """Return the error at the meeting point on the images that judge."""
        return segment_error(self.segment, [self.segment(x) for x in self.now], self.truth)

    def fit_branches(self, default: str) -> tuple[str, ...]:
        """Fit every branch; return what was done in each, `default` where nothing helped."""
        target = branch_tail(self.section)
        axis = self.segment.axis
        done: list[str] = []
        at = 0
        for branch in self.segment.branches:
            assert isinstance(branch, fx.GraphModule)
            width = branch(self.now[0][:1]).shape[axis]
            channels = self.segment.stands_for[at : at + width]
            fit = BranchFit(
                branch, self.section, channels, axis, self.now, self.entered, self.truth
            )
            done.append(fit.fit(target) or default)
            at += width
        return tuple(done)
