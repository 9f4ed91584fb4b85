"""How alike the features of branches are: linear centered kernel alignment.

Kornblith et al., "Similarity of Neural Network Representations Revisited", 2019: 1 where one
branch's features are a rotation and scaling of the other's, 0 where they share nothing.
"""

from __future__ import annotations

from itertools import combinations
from statistics import mean

import torch
from torch import Tensor

from nnstretch.stretch.weights.branched_module import BranchedSegment, StretchedNetwork


def linear_cka(first: Tensor, second: Tensor) -> float:
    """Return the alignment of two sets of features, `[image, ...]`, by their Gram matrices."""
    grams = []
    for features in (first, second):
        flat = features.flatten(1).double()
        flat = flat - flat.mean(0)
        grams.append(flat @ flat.T)
    norms = grams[0].norm() * grams[1].norm()
    return float((grams[0] * grams[1]).sum() / norms) if norms > 0 else 0.0


@torch.inference_mode()
def branch_similarity(network: StretchedNetwork, images: Tensor) -> list[float]:
    """Return for every fork how alike its branches' outputs are, the mean over pairs."""
    network.eval()
    similar: list[float] = []
    x = images
    for segment in network.segments:
        assert isinstance(segment, BranchedSegment)
        if len(segment.branches) > 1:
            outputs = [branch(x) for branch in segment.branches]
            similar.append(mean(linear_cka(a, b) for a, b in combinations(outputs, 2)))
        x = segment(x)
    return similar
