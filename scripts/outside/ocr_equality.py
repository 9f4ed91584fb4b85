"""PP-OCR's three networks, whole and split in two, beside ONNX Runtime on drawn images.

    python scripts/outside ocr --images 50 --out docs/results/outside_ocr.md

The rebuilt graph runs on PyTorch, the two stages on ONNX Runtime in a row. Differences are absolute:
outputs of all three are probabilities.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from outside_networks import OutsideNetwork, onnx_files
from outside_trial import reference

from nnstretch.bench.commands import command_line
from nnstretch.bench.markdown import markdown_table
from nnstretch.bundle.bundle import read_bundle
from nnstretch.capture import build, load_model, trace
from nnstretch.capture.example_inputs import example_inputs
from nnstretch.capture.model_spec import spec_with
from nnstretch.files.atomic import write_text
from nnstretch.files.input_shapes import parse_input_shapes
from nnstretch.partition.export import export_partition
from nnstretch.partition.partition import PartitionRequest, partitions
from nnstretch.predict import load_soc
from nnstretch.run.pipelines.sequential import SequentialPipeline
from nnstretch.stretch.cost.cost_model import CostModel

EQUAL = 1e-4


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--images", type=int, default=50, help="of each network (50)")
    parser.add_argument("--out", type=Path, default=Path("docs/results/outside_ocr.md"))


def run(args: argparse.Namespace) -> int:
    rows = []
    for network in onnx_files():
        if network.name.startswith("PP-OCR"):
            whole, parts, sizes = compare(network, args.images)
            rows.append(
                (network.name, network.inputs, args.images, f"{whole:.1e}", f"{parts:.1e}", sizes)
            )
            print(rows[-1], flush=True)
    heads = (
        "network",
        "input",
        "images",
        "whole: largest difference",
        "parts: largest difference",
        "nodes of the parts",
    )
    text = [
        "# PP-OCR in parts",
        "",
        f"`{command_line()}`",
        "",
        (__doc__ or "").split("\n\n")[2].strip(),
        "",
    ]
    write_text(args.out, "\n".join([*text, *markdown_table(heads, rows), ""]))
    return 0


def compare(network: OutsideNetwork, images: int) -> tuple[float, float, str]:
    """Largest differences of the rebuilt graph and of two stages, and the stages' sizes."""
    inputs = parse_input_shapes(network.inputs)
    spec = spec_with(network.source, inputs, ())
    module = load_model(spec).eval()
    captured = trace(module, example_inputs(spec, module), spec)
    rebuilt = build(captured.graph, captured.weights).eval()
    soc = load_soc("mi9")
    request = PartitionRequest(2, ("cpu", "dsp"))
    partition = partitions(captured.graph, soc, request, None, CostModel(soc, "nearest"))[0]
    whole = parts = 0.0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "parts.nns"
        export_partition(partition, captured.weights, path, soc=soc, module=module)
        pipeline = SequentialPipeline(read_bundle(path))
        for seed in range(images):
            x = drawn_image(inputs[0].shape, seed)
            (expected,) = reference(network, module, [torch.from_numpy(x)])
            with torch.no_grad():
                whole = max(
                    whole, float(np.abs(rebuilt(torch.from_numpy(x)).numpy() - expected).max())
                )
            parts = max(parts, float(np.abs(pipeline.run(x) - expected).max()))
    sizes = " + ".join(str(len(subgraph.nodes)) for subgraph in partition.subgraphs)
    return whole, parts, sizes


def drawn_image(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """A drawn page of bars and strokes on a shaded ground, normalised to -1..1, NCHW."""
    rng = np.random.default_rng(seed)
    _, channels, height, width = shape
    ground = np.linspace(rng.uniform(0.6, 1), rng.uniform(0.6, 1), width)
    image = np.broadcast_to(ground, (channels, height, width)).copy()
    for _ in range(int(rng.integers(10, 60))):
        top, left = rng.integers(0, height - 4), rng.integers(0, width - 8)
        image[:, top : top + rng.integers(2, 12), left : left + rng.integers(2, 24)] = rng.uniform(
            0, 0.4
        )
    noisy = image + rng.normal(0, 0.02, image.shape)
    return (noisy[None] * 2 - 1).astype(np.float32)
