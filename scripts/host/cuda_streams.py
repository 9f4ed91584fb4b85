"""On a CUDA card: branches on streams inside one graph against the original, and streams of items.

Of batch 1, both networks are one CUDA graph. The branched network also runs on one stream, so that what is won by branches at once and what by a
smaller network can be told apart. All three take turns; a time is one replay, from its launch until
the card is done, without the copies in and out.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import cuda_copies
import numpy as np

from nnstretch.bench.commands import command_line
from nnstretch.bench.markdown import markdown_row, markdown_table
from nnstretch.files.atomic import write_text

if TYPE_CHECKING:
    from nnstretch.bundle.bundle import Bundle

NETWORKS = ("torchvision:resnet50", "torchvision:regnet_x_1_6gf", "torchvision:mobilenet_v3_large")
SHARE = 0.5
"""Of depth and of width that each of the two branches has."""
WARM_UPS = 20


@dataclass(frozen=True)
class Times:
    """Of one network in one form."""

    form: str
    median_us: float
    spread_us: tuple[float, float]
    """A tenth of replays took less than the first, a tenth more than the second."""


@dataclass(frozen=True)
class Forms:
    """One network as bundles, by form; and its MACs, of the original and of the branched."""

    bundles: Mapping[str, Bundle]
    macs: tuple[int, int]


def forms_of(model: str, shape: tuple[int, ...]) -> Forms:
    import torch

    from nnstretch.bundle.bundle import read_bundle
    from nnstretch.capture import capture, load_model
    from nnstretch.export import export
    from nnstretch.stretch import NetworkAnalysis, single_processor_plan, stretch
    from nnstretch.stretch.lowering.lower import lower
    from nnstretch.stretch.lowering.two_branch_plan import two_branches

    module = load_model(model).eval()
    analysis = NetworkAnalysis(capture(module, torch.zeros(shape), model))
    plans = {
        "original": single_processor_plan(analysis.graph, model, "a"),
        "streams": two_branches(analysis, model, ("a", "b"), (SHARE, SHARE), SHARE).plan,
    }
    bundles = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, plan in plans.items():
            path = Path(folder) / f"{name}.nns"
            export(stretch(module, plan), plan, path)
            bundles[name] = read_bundle(path)
    manifest = bundles["streams"].manifest
    alone = replace(
        manifest, subgraphs=tuple(replace(sub, processor="a") for sub in manifest.subgraphs)
    )
    bundles["one stream"] = replace(bundles["streams"], manifest=alone)
    original, branched = (lower(analysis, plan).macs for plan in plans.values())
    return Forms(bundles, (original, branched))


def interleaved(replays: Mapping[str, Callable[[], None]], rounds: int) -> list[Times]:
    """Time replays in turns; each waits for its own end."""
    times_us: dict[str, list[float]] = {name: [] for name in replays}
    for number in range(rounds + WARM_UPS):
        for name, replay in replays.items():
            begun = perf_counter()
            replay()
            if number >= WARM_UPS:
                times_us[name].append((perf_counter() - begun) * 1e6)
    return [
        Times(
            name, float(np.median(us)), (float(np.quantile(us, 0.1)), float(np.quantile(us, 0.9)))
        )
        for name, us in times_us.items()
    ]


def measured(forms: Forms, device: str, rounds: int) -> list[Times]:
    import torch

    from nnstretch.run.backends.torch_cuda import CudaGraphSession

    def waiting(request: CudaGraphSession) -> Callable[[], None]:
        def replay() -> None:
            request.recording.replay()
            torch.cuda.synchronize(device)

        return replay

    return interleaved(
        {name: waiting(CudaGraphSession(bundle, device)) for name, bundle in forms.bundles.items()},
        rounds,
    )


def cells(model: str, forms: Forms, times: list[Times]) -> list[str]:
    by_form = {form.form: form for form in times}
    shown = []
    for name in FORMS:
        low, high = by_form[name].spread_us
        shown.append(f"{by_form[name].median_us:.0f} ({low:.0f} to {high:.0f})")
    streams_us = by_form["streams"].median_us
    gains = [f"{by_form[name].median_us / streams_us:.2f}" for name in ("original", "one stream")]
    return [model, f"{forms.macs[1] / forms.macs[0]:.2f}", *shown, *gains]


FORMS = ("original", "one stream", "streams")
HEADS = (
    *("network", "MACs, branched to original", "original, us", "branched on one stream, us"),
    *("branched on streams, us", "speed-up", "of it by streams"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cuda", help="cuda or cuda:N (default cuda)")
    parser.add_argument(
        "--rounds", type=int, default=300, help="replays of each form (default 300)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("docs/results/bench_cuda.md"),
        help="the page (default docs/results/bench_cuda.md)",
    )


def run(args: argparse.Namespace) -> int:
    from nnstretch.run.backends.torch_cuda import require_cuda

    card = require_cuda(args.device).get_device_name(args.device)
    branches, streams = [], []
    for model in NETWORKS:
        forms = forms_of(model, (1, 3, 224, 224))
        branches.append(cells(model, forms, measured(forms, args.device, args.rounds)))
        print(markdown_row(branches[-1]), flush=True)
    for model in NETWORKS:
        for images in cuda_copies.IMAGES:
            times = cuda_copies.measured(model, images, args.device)
            streams.append(cuda_copies.cells(model, images, times))
            print(markdown_row(streams[-1]), flush=True)
    head = f"""# Branches and pipelines on a CUDA card

Made by `{command_line()}` on one {card}: float32 without TF32, random weights.

## Branches on streams of one CUDA graph

Batch 1. Medians of {args.rounds} replays that took turns, and between which times four fifths of them lie. Copies in and out are not counted.
"""
    between = f"""
## A stream of items

A pipeline of one stage, `backend="torch:{args.device}"`, {cuda_copies.ITEMS} items a turn, medians of {cuda_copies.ROUNDS} turns. Its three workers copy in, compute and
copy out, each on a stream of its own; beside it the same three steps one after another.
"""
    tables = [
        *markdown_table(HEADS, branches),
        between,
        *markdown_table(cuda_copies.HEADS, streams),
    ]
    write_text(args.out, "\n".join([head, *tables, ""]))
    return 0
