"""Images per second of `nnstretch train` against a bare PyTorch loop of the same step, within one
run.

The bare loop has the same network, images, augmentation, loss, optimiser and learning rate, and
nothing else: no Lightning, no metrics, no checks, no saves. A turn is one epoch of `nnstretch
train`, in which the bare loop takes a step before each of its steps (on a card: eight before every
eighth, as one waits for the card where one takes over): what slows the machine for a second slows
both. Beside the median of the turns' ratios stands its 95 % interval by order statistics, which
asks nothing of how they are spread.

  OMP_NUM_THREADS=1 python scripts/bench_training.py --out docs/results/training_speed.md
"""

from __future__ import annotations

import argparse
import platform
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, chain, count, repeat
from math import comb
from pathlib import Path
from statistics import median

import torch
from torch.nn import functional

from nnstretch.capture import load_model
from nnstretch.files.atomic import write_text
from nnstretch.train import fit, load_recipe
from nnstretch.train.data.datamodule import Pictures
from nnstretch.train.data.transforms import augment_batch
from nnstretch.train.hardware import resolve_accelerator
from nnstretch.train.optimizers import learning_rate_factor, make_optimizer
from nnstretch.train.recipe import Recipe

CASES = (
    ("torchvision:resnet18?num_classes=10", 32, 32),
    ("torchvision:resnet18?num_classes=10", 64, 32),
    ("torchvision:regnet_x_400mf?num_classes=10", 32, 64),
    ("torchvision:mobilenet_v3_small?num_classes=10", 32, 64),
)
"""Model, side of the images, images in a batch."""
STEPS_AT_ONCE = {"cpu": 1, "cuda": 8}


def bare(recipe: Recipe, device: torch.device) -> Callable[[], None]:
    """The step of a loop that is ready to begin."""
    pictures = Pictures(recipe)
    network = load_model(recipe.model).to(device, memory_format=torch.channels_last).train()
    optimizer = make_optimizer(network, recipe.optimizer)
    steps = len(pictures.sampling_order(recipe.data.batch_images, pictures.process_share()))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_factor(step, steps, recipe.optimizer.warmup)
    )
    bf16 = recipe.trainer.precision == "bf16"
    loader = pictures.train_dataloader()
    loader.pin_memory = device.type == "cuda"  # as nnstretch train has it
    batches = chain.from_iterable(repeat(loader))

    def step() -> None:
        batch = next(batches).to(device)
        images = augment_batch(
            batch.images, batch.pick, recipe.seed, recipe.augment, pictures.dataset
        )
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            scores = network(images.contiguous(memory_format=torch.channels_last))
        loss = functional.cross_entropy(
            scores.float(), batch.labels, label_smoothing=recipe.loss.label_smoothing
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()

    return step


def turn(recipe: Recipe, device: torch.device) -> tuple[float, float]:
    """Images per second of `nnstretch train`, and of the bare loop, which takes over where the
    network is about to be called.
    """
    network, theirs, at_once = (
        load_model(recipe.model),
        bare(recipe, device),
        STEPS_AT_ONCE[device.type],
    )
    mine, spent_s = count(), []

    def take_over(*_: object) -> None:
        if not torch.is_grad_enabled() or next(mine) % at_once:
            return
        wait(device)
        began = time.perf_counter()
        for _ in range(at_once):
            theirs()
        wait(device)
        spent_s.append(time.perf_counter() - began)

    network.register_forward_pre_hook(take_over)
    with tempfile.TemporaryDirectory() as folder:
        both_per_s = fit(network, recipe, Path(folder), progress=False).images_per_s
    images, theirs_s = next(mine) * recipe.data.batch_images, sum(spent_s)
    return (
        images / (images / both_per_s - theirs_s),
        len(spent_s) * at_once * recipe.data.batch_images / theirs_s,
    )


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def interval_of_median(values: Sequence[float]) -> tuple[float, float]:
    """Where the median is in 95 of 100 cases, by order statistics (David and Nagaraja 2003, 7.1).

    Of fewer than six values, their ends.
    """
    ordered, count = sorted(values), len(values)
    missed = accumulate(comb(count, below) / 2 ** (count - 1) for below in range(count // 2))
    cut = sum(share <= 0.05 for share in missed) - 1
    return ordered[max(0, cut)], ordered[-1 - max(0, cut)]


def row(recipe: Recipe, turns: int, device: torch.device) -> str:
    turn(recipe, device)  # warm-up
    pairs = [turn(recipe, device) for _ in range(turns)]
    ratios = [mine / theirs for mine, theirs in pairs]
    low, high = interval_of_median(ratios)
    speeds = [f"{median(speeds):.0f}" for speeds in zip(*pairs, strict=True)]
    spread = [
        f"{median(ratios):.3f} ({low:.3f} to {high:.3f})",
        f"{min(ratios):.3f} to {max(ratios):.3f}",
    ]
    line = f"| {' | '.join([recipe.model.partition('?')[0], str(recipe.data.image_px), str(recipe.data.batch_images), *speeds, *spread])} |"
    print(line, flush=True)
    return line


def page(rows: Sequence[str], args: argparse.Namespace, where: str) -> str:
    meant = "95 % interval of the median" if args.turns > 5 else "lowest to highest"
    return "\n".join(
        [
            "# Speed of training",
            "",
            (
                f"Made by `OMP_NUM_THREADS={torch.get_num_threads()} python"
                f" scripts/bench_training.py {shlex.join(sys.argv[1:])}`."
            ),
            (
                f"Digits, {where}, {args.precision}, channels_last, SGD; {args.turns} epochs, step"
                " by step in turns, medians."
            ),
            "Without progress bar and TensorBoard.",
            (
                "Ratio: images per second of `nnstretch train` over those of a bare PyTorch loop"
                f" of the same step ({meant})."
            ),
            "",
            (
                "| network | side, px | batch | nnstretch train, images/s | bare loop, images/s |"
                " ratio | of single epochs |"
            ),
            "|---|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=9, help="epochs of each network")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--accelerator", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, default=Path("docs/results/training_speed.md"))
    args = parser.parse_args()
    base = load_recipe(
        "digits",
        [
            "trainer.max_epochs=1",
            "trainer.tensorboard=false",
            f"trainer.threads={torch.get_num_threads()}",
        ],
    )
    base = replace(
        base, trainer=replace(base.trainer, precision=args.precision, accelerator=args.accelerator)
    )
    device = torch.device(resolve_accelerator(base.trainer))
    where = (
        torch.cuda.get_device_name()
        if device.type == "cuda"
        else f"{torch.get_num_threads()} thread of {platform.machine()}"
    )
    rows = [
        row(
            replace(base, model=model, data=replace(base.data, image_px=side, batch_images=images)),
            args.turns,
            device,
        )
        for model, side, images in CASES
    ]
    write_text(args.out, page(rows, args, where))
    return 0


if __name__ == "__main__":
    sys.exit(main())
