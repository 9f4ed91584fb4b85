"""PP-OCR's three networks, whole and split in two, beside ONNX Runtime on drawn images.

    python scripts/outside ocr --images 50 --out docs/results/outside_ocr.md

Largest absolute differences of outputs, which are probabilities, from ONNX Runtime on the original
file: of the network exported whole and in two stages and run by ONNX Runtime, and of the rebuilt
graph on PyTorch. The last three columns are differences from the rebuilt graph computed in float64. Float32 sums in
another order differ by as much: PyTorch and ONNX Runtime are about as far from the true numbers as
from each other.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from dataclasses import astuple, dataclass
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
from nnstretch.capture.torch_export import CapturedNetwork
from nnstretch.files.atomic import write_text
from nnstretch.files.model_text import parse_input_shapes
from nnstretch.partition.export import export_partition
from nnstretch.partition.partition import PartitionRequest, partitions
from nnstretch.predict import load_soc
from nnstretch.run.pipelines.sequential import SequentialPipeline
from nnstretch.stretch.cost.cost_model import CostModel

HEADS = (
    *("network", "input", "images", "whole", "two stages", "on PyTorch"),
    *(
        "file, from float64",
        "whole, from float64",
        "on PyTorch, from float64",
        "nodes of the parts",
    ),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--images", type=int, default=50, help="of each network (50)")
    parser.add_argument("--out", type=Path, default=Path("docs/results/outside_ocr.md"))


def run(args: argparse.Namespace) -> int:
    rows = []
    for network in onnx_files():
        if network.name.startswith("PP-OCR"):
            largest, sizes = compare(network, args.images)
            numbers = [f"{value:.1e}" for value in astuple(largest)]
            rows.append((network.name, network.inputs, args.images, *numbers, sizes))
            print(rows[-1], flush=True)
    text = ["# PP-OCR in parts", "", f"`{command_line()}`", ""]
    text += [*(__doc__ or "").strip().split("\n\n")[2:], ""]
    write_text(args.out, "\n".join([*text, *markdown_table(HEADS, rows), ""]))
    return 0


@dataclass
class Largest:
    """Largest absolute differences over all images."""

    whole: float = 0.0
    parts: float = 0.0
    pytorch: float = 0.0
    file_from_float64: float = 0.0
    whole_from_float64: float = 0.0
    pytorch_from_float64: float = 0.0

    def add(self, name: str, first: np.ndarray, second: np.ndarray) -> None:
        """Count one image."""
        setattr(self, name, max(getattr(self, name), float(np.abs(first - second).max())))


def compare(network: OutsideNetwork, images: int) -> tuple[Largest, str]:
    """Return the largest differences of a network, and the sizes of its two parts."""
    inputs = parse_input_shapes(network.inputs)
    spec = spec_with(network.source, inputs, ())
    module = load_model(spec).eval()
    captured = trace(module, example_inputs(spec, module), spec)
    rebuilt = build(captured.graph, captured.weights).eval()
    exact = copy.deepcopy(rebuilt).double()
    largest = Largest()
    with tempfile.TemporaryDirectory() as folder:
        whole, _ = exported(captured, module, 1, Path(folder) / "whole.nns")
        parts, sizes = exported(captured, module, 2, Path(folder) / "parts.nns")
        for seed in range(images):
            x = drawn_image(inputs[0].shape, seed)
            (expected,) = reference(network, module, [torch.from_numpy(x)])
            with torch.no_grad():
                by_pytorch = rebuilt(torch.from_numpy(x)).numpy()
                true = exact(torch.from_numpy(x).double()).numpy()
            by_whole = whole.run(x)
            largest.add("whole", by_whole, expected)
            largest.add("parts", parts.run(x), expected)
            largest.add("pytorch", by_pytorch, expected)
            largest.add("file_from_float64", expected, true)
            largest.add("whole_from_float64", by_whole, true)
            largest.add("pytorch_from_float64", by_pytorch, true)
    return largest, sizes


def exported(
    captured: CapturedNetwork, module: torch.nn.Module, stages: int, path: Path
) -> tuple[SequentialPipeline, str]:
    """Export a network in so many stages; return it loaded, and its numbers of nodes."""
    soc = load_soc("mi9")
    request = PartitionRequest(stages, ("cpu", "dsp")[:stages])
    partition = partitions(captured.graph, soc, request, None, CostModel(soc, "nearest"))[0]
    export_partition(partition, captured.weights, path, soc=soc, module=module)
    sizes = " + ".join(str(len(subgraph.nodes)) for subgraph in partition.subgraphs)
    return SequentialPipeline(read_bundle(path)), sizes


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
