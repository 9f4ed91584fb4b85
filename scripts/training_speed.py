"""Images per second of `nnstretch train` against a bare PyTorch loop of the same step, in one run.

The bare loop has the same network, images, augmentation, loss, optimizer and learning rate, and
nothing else: no Lightning, no metrics, no checks, no saves. A turn is one epoch of `nnstretch
train`, in which the bare loop takes a step before each of its steps (on a card: eight before every
eighth, as one waits for the card where one takes over): what slows the machine for a second slows
both. Beside the median of the turns' ratios stands its 95 % interval by order statistics, which
asks nothing of how they are spread.

    OMP_NUM_THREADS=1 python scripts/training_speed.py --out docs/results/training_speed.md
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import chain, count, repeat
from pathlib import Path
from statistics import median

import torch
from torch.nn import functional

from nnstretch.bench.commands import command_line, command_parser, run_command
from nnstretch.bench.markdown import markdown_row, markdown_table
from nnstretch.bench.statistics import speedup
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
    """Return the step of a bare loop that is ready to begin."""
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
            batch.images, batch.selection, recipe.seed, recipe.augment, pictures.dataset
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
    """Return images per second of `nnstretch train`, and of the bare loop, which takes over where
    the network is about to be called.
    """
    network, bare_step = load_model(recipe.model), bare(recipe, device)
    at_once = STEPS_AT_ONCE[device.type]
    mine, spent_s = count(), []

    def take_over(*_: object) -> None:
        if not torch.is_grad_enabled() or next(mine) % at_once:
            return
        wait(device)
        began = time.perf_counter()
        for _ in range(at_once):
            bare_step()
        wait(device)
        spent_s.append(time.perf_counter() - began)

    network.register_forward_pre_hook(take_over)
    with tempfile.TemporaryDirectory() as folder:
        both_per_s = fit(network, recipe, Path(folder), progress=False).images_per_s
    images, bare_s = next(mine) * recipe.data.batch_images, sum(spent_s)
    return (
        images / (images / both_per_s - bare_s),
        len(spent_s) * at_once * recipe.data.batch_images / bare_s,
    )


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def cells(recipe: Recipe, turns: int, device: torch.device) -> list[str]:
    turn(recipe, device)  # warm-up
    train_per_s, bare_per_s = zip(*(turn(recipe, device) for _ in range(turns)), strict=True)
    ratio = speedup(train_per_s, bare_per_s)
    ratios = [mine / bare for mine, bare in zip(train_per_s, bare_per_s, strict=True)]
    row = [
        recipe.model.partition("?")[0],
        str(recipe.data.image_px),
        str(recipe.data.batch_images),
        f"{median(train_per_s):.0f}",
        f"{median(bare_per_s):.0f}",
        f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})",
        f"{min(ratios):.3f} to {max(ratios):.3f}",
    ]
    print(markdown_row(row), flush=True)
    return row


HEADS = (
    *("network", "side, px", "batch", "nnstretch train, images/s", "bare loop, images/s"),
    *("ratio", "of single epochs"),
)


def page(rows: list[list[str]], args: argparse.Namespace, where: str) -> str:
    meant = "95 % interval of the median" if args.turns > 5 else "lowest to highest"
    head = f"""# Speed of training

Made by `OMP_NUM_THREADS={torch.get_num_threads()} {command_line()}`.
Digits, {where}, {args.precision}, channels_last, SGD; {args.turns} epochs, step by step in turns, medians.
Without progress bar and TensorBoard.
Ratio: images per second of `nnstretch train` over those of a bare PyTorch loop of the same step ({meant}).
"""
    return "\n".join([head, *markdown_table(HEADS, rows), ""])


def arguments() -> argparse.ArgumentParser:
    parser = command_parser(__doc__)
    parser.add_argument("--turns", type=int, default=9, help="epochs of each network")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--accelerator", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, default=Path("docs/results/training_speed.md"))
    return parser


def main() -> int:
    args = arguments().parse_args()
    threads = torch.get_num_threads()
    keys = ["trainer.max_epochs=1", "trainer.tensorboard=false", f"trainer.threads={threads}"]
    keys += [f"trainer.precision={args.precision}", f"trainer.accelerator={args.accelerator}"]
    base = load_recipe("digits", keys)
    device = torch.device(resolve_accelerator(base.trainer))
    where = (
        torch.cuda.get_device_name()
        if device.type == "cuda"
        else f"{threads} thread of {platform.machine()}"
    )
    rows = []
    for model, image_px, batch_images in CASES:
        data = replace(base.data, image_px=image_px, batch_images=batch_images)
        rows.append(cells(replace(base, model=model, data=data), args.turns, device))
    write_text(args.out, page(rows, args, where))
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
