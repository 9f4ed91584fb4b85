"""Train the example's detector: `python train.py --out weights.safetensors`.

Prints what it reaches on scenes it never saw.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from detector import CLASSES, STRIDE_PX, WEIGHTS, Detector
from scenes import HELD_OUT, PHOTO_PX, TRAINING, Scene, scene
from scores import average_precision, precision, recall
from stages import LARGEST_LOG, LEAST_SCORE, MOST_OVERLAP, SCALE, candidates, kept, load
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

CELLS = PHOTO_PX // SCALE // STRIDE_PX
INNER = 0.3
"""A cell answers for a box if its middle is in this share of the box around the box's middle, or is
the one nearest to it.
"""


def targets(truth: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
    """Of one scene: classes [classes, h, w], distances in cells [4, h, w], and which cells answer
    for a box [h, w].
    """
    wanted, reach = (
        np.zeros((len(CLASSES), CELLS, CELLS), np.float32),
        np.ones((4, CELLS, CELLS), np.float32),
    )
    at = np.arange(CELLS) + 0.5
    for left, top, right, bottom, _, label in truth:
        left, top, right, bottom = (side * CELLS for side in (left, top, right, bottom))
        x, y = (left + right) / 2, (top + bottom) / 2
        columns = [
            c for c in range(CELLS) if abs(at[c] - x) <= max(0.5, INNER / 2 * (right - left))
        ]
        rows = [r for r in range(CELLS) if abs(at[r] - y) <= max(0.5, INNER / 2 * (bottom - top))]
        for r in rows:
            for c in columns:
                wanted[int(label), r, c] = 1
                reach[:, r, c] = at[c] - left, at[r] - top, right - at[c], bottom - at[r]
    positive = torch.from_numpy(wanted.max(0) > 0)
    return torch.from_numpy(wanted), torch.from_numpy(np.maximum(reach, 0.05)), positive


def loss_of(
    scores: Tensor, distances: Tensor, wanted: Tensor, reach: Tensor, positive: Tensor
) -> Tensor:
    """Focal loss of the classes (Lin et al. 2017), and -log of the overlap of boxes (Yu et al.
    2016), by the number of cells with a box.
    """
    plain = binary_cross_entropy_with_logits(scores, wanted, reduction="none")
    chance = torch.sigmoid(scores)
    right = chance * wanted + (1 - chance) * (1 - wanted)
    weight = (0.3 * wanted + 0.7 * (1 - wanted)) * (1 - right) ** 2
    ours, true = (
        torch.exp(distances.clamp(max=LARGEST_LOG)).movedim(1, -1)[positive],
        reach.movedim(1, -1)[positive],
    )
    shared = torch.minimum(ours, true)
    common = (shared[:, 0] + shared[:, 2]) * (shared[:, 1] + shared[:, 3])
    areas = [(one[:, 0] + one[:, 2]) * (one[:, 1] + one[:, 3]) for one in (ours, true)]
    apart = -torch.log(common / (areas[0] + areas[1] - common) + 1e-6)
    return (4 * (plain * weight).sum() + apart.sum()) / positive.sum().clamp(min=1)


def mirrored(
    images: Tensor, goals: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    wanted, reach, positive = goals
    return images.flip(3), (wanted.flip(3), reach.flip(3)[:, [2, 1, 0, 3]], positive.flip(2))


def trained(scenes: list[Scene], epochs: int, batch: int = 32, peak: float = 4e-3) -> Detector:
    torch.manual_seed(0)
    images = torch.from_numpy(np.concatenate([load(one.file) for one in scenes]))
    goals = tuple(
        torch.stack(part) for part in zip(*(targets(one.truth) for one in scenes), strict=True)
    )
    network = Detector().train()
    optimiser = torch.optim.AdamW(network.parameters(), weight_decay=1e-3)
    steps = epochs * (len(scenes) // batch)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimiser, peak, total_steps=steps)
    for epoch in range(epochs):
        total, order = 0.0, torch.randperm(len(scenes))
        for pick in order[: len(scenes) // batch * batch].split(batch):
            seen, wanted = images[pick], tuple(part[pick] for part in goals)
            if torch.rand(()) < 0.5:
                seen, wanted = mirrored(seen, wanted)  # type: ignore[arg-type]
            loss = loss_of(*network(seen), *wanted)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            rates.step()
            total += loss.item()
        print(
            f"epoch {epoch + 1} of {epochs}: loss {total / (len(scenes) // batch):.3f}", flush=True
        )
    return network.eval()


def judged(network: Detector, scenes: list[Scene]) -> str:
    """Precision, recall and average precision, through the stages that the pipeline has."""
    truths = [one.truth for one in scenes]
    with torch.no_grad():
        outputs = [
            tuple(part.numpy() for part in network(torch.from_numpy(load(one.file))))
            for one in scenes
        ]
    every = [kept(candidates(*both, 0.02), MOST_OVERLAP) for both in outputs]
    drawn = [found[found[:, 4] >= LEAST_SCORE] for found in every]
    each = [average_precision(every, truths, label) for label in range(len(CLASSES))]
    by_class = ", ".join(f"{name} {value:.3f}" for name, value in zip(CLASSES, each, strict=True))
    return (
        f"{len(scenes)} held-out scenes, {sum(map(len, truths))} shapes, overlap 0.5: mean average"
        f" precision {np.mean(each):.3f} ({by_class}); at score {LEAST_SCORE}: recall"
        f" {recall(drawn, truths):.3f}, precision {precision(drawn, truths):.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    parser.add_argument("--scenes", type=int, default=1200)
    parser.add_argument("--epochs", type=int, default=14)
    args = parser.parse_args()
    from nnstretch.stretch.weights.weights_file import save_weights

    began_s = perf_counter()
    network = trained([scene(number, TRAINING) for number in range(args.scenes)], args.epochs)
    save_weights(network, args.out)
    print(f"{args.out} written after {perf_counter() - began_s:.0f} s")
    print(judged(network, [scene(number, HELD_OUT) for number in range(300)]))


if __name__ == "__main__":
    main()
