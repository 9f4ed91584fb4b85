"""Images per second of `nnstretch train` against a bare PyTorch loop of the same step, in turns within one run.

The bare loop has the same network, images, augmentation, loss, optimiser and learning rate, and nothing else: no Lightning, no
metrics, no checks, no saves. Each turn is one epoch; the ratio is taken within each pair of turns.

  OMP_NUM_THREADS=1 python scripts/bench_training.py --out docs/training_speed.md
"""

from __future__ import annotations

import argparse
import platform
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch
from torch.nn import functional

from nnstretch.capture import load_model
from nnstretch.files import write_text
from nnstretch.train import fit, load_recipe
from nnstretch.train.data.loading import Pictures
from nnstretch.train.data.views import for_training
from nnstretch.train.descent import learning_rate_factor, make_optimizer
from nnstretch.train.machine import accelerator_of
from nnstretch.train.recipe import Recipe

CASES = (
    ("torchvision:resnet18?num_classes=10", 32, 32),
    ("torchvision:resnet18?num_classes=10", 64, 32),
    ("torchvision:regnet_x_400mf?num_classes=10", 32, 64),
    ("torchvision:mobilenet_v3_small?num_classes=10", 32, 64),
)
"""Model, side of the images, images in a batch."""


def bare(recipe: Recipe, device: torch.device) -> float:
    """Images per second of one epoch."""
    pictures = Pictures(recipe)
    network = load_model(recipe.model).to(device, memory_format=torch.channels_last).train()
    optimizer = make_optimizer(network, recipe.optimizer)
    order = pictures.order(recipe.data.batch_images, pictures.share())
    steps = len(order)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_factor(step, steps, recipe.optimizer.warmup))
    bf16 = recipe.trainer.precision == "bf16"
    began = time.perf_counter()
    for batch in pictures.train_dataloader():
        batch = batch.to(device)
        images = for_training(batch.images, batch.pick, recipe.seed, recipe.augment, pictures.dataset)
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            scores = network(images.contiguous(memory_format=torch.channels_last))
        loss = functional.cross_entropy(scores.float(), batch.labels, label_smoothing=recipe.loss.label_smoothing)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return steps * recipe.data.batch_images / (time.perf_counter() - began)


def ours(recipe: Recipe) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return fit(load_model(recipe.model), recipe, Path(folder), progress=False).images_per_s


def row(recipe: Recipe, turns: int, device: torch.device) -> str:
    ours(recipe), bare(recipe, device)  # warm-up
    pairs = []
    for turn in range(turns):  # who goes first changes, as machines drift
        pairs.append((ours(recipe), bare(recipe, device)) if turn % 2 else (bare(recipe, device), ours(recipe))[::-1])
    ratios = sorted(mine / theirs for mine, theirs in pairs)
    speeds = [f"{median(speeds):.0f}" for speeds in zip(*pairs, strict=True)]
    name = recipe.model.partition("?")[0]
    cells = [name, f"{recipe.data.image_px}", f"{recipe.data.batch_images}", *speeds, f"{median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"]
    line = f"| {' | '.join(cells)} |"
    print(line, flush=True)
    return line


def page(rows: Sequence[str], args: argparse.Namespace, where: str) -> str:
    return "\n".join(
        [
            "# Speed of training",
            "",
            f"Made by `OMP_NUM_THREADS={torch.get_num_threads()} python scripts/bench_training.py {shlex.join(sys.argv[1:])}`.",
            f"Digits, {where}, {args.precision}, channels_last, SGD; {args.turns} pairs of epochs in turns, medians (lowest to highest).",
            "Ratio: images per second of `nnstretch train` over those of a bare PyTorch loop of the same step.",
            "",
            "| network | side, px | batch | nnstretch train, images/s | bare loop, images/s | ratio |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--accelerator", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, default=Path("docs/training_speed.md"))
    args = parser.parse_args()
    base = load_recipe("digits", ["trainer.max_epochs=1", "trainer.tensorboard=false", f"trainer.threads={torch.get_num_threads()}"])
    base = replace(base, trainer=replace(base.trainer, precision=args.precision, accelerator=args.accelerator))
    device = torch.device(accelerator_of(base.trainer))
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"{torch.get_num_threads()} thread of {platform.machine()}"
    rows = [
        row(replace(base, model=model, data=replace(base.data, image_px=side, batch_images=images)), args.turns, device)
        for model, side, images in CASES
    ]
    write_text(args.out, page(rows, args, where))
    return 0


if __name__ == "__main__":
    sys.exit(main())
