"""Collect the operators of a zoo of networks, from which `nnstretch profile` draws its kernels.

The table that ships is nnstretch/profile/prior.csv. One row is one operator with its shapes and how often the networks use it. Networks named in
nnstretch/profile/validation.py are refused: what is to be predicted must not be sampled.
"""

from __future__ import annotations

import argparse
import csv
import io
from collections import Counter
from pathlib import Path

from nnstretch.errors import BadInput
from nnstretch.files.atomic import write_text
from nnstretch.kernel import WEIGHTED, FusionRules
from nnstretch.profile.sampling.kernel_spec import KernelSpec, spec_of_kernel
from nnstretch.profile.validation import NETWORKS
from nnstretch.structure.kernel_fusion import fuse_kernels

UNFUSED = FusionRules(frozenset((kind, "batch_norm") for kind in WEIGHTED))
COLUMNS = (
    *("count", "networks", "kind", "op", "kernel", "stride", "groups"),
    *("shape_out", "shapes_in"),
)


def operators(network: str) -> list[KernelSpec]:
    """Return the operators of a network, none fused but batch norms."""
    import torch

    from nnstretch.capture import default_input, load_model
    from nnstretch.capture.torch_export import capture

    module = load_model(network).eval()
    graph = capture(module, torch.zeros(default_input(network, module)), network)
    return [spec_of_kernel(kernel) for kernel in fuse_kernels(graph, UNFUSED) if kernel.shapes_in]


def prior_csv(count: Counter[KernelSpec], networks: Counter[KernelSpec]) -> str:
    """Return the table: an operator, how often it is used, and by how many networks."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for spec in sorted(count, key=sort_key):
        shapes = [format_shape(shape) for shape in (spec.shape_out, *spec.shapes_in)]
        numbers = (spec.kernel, spec.stride, spec.groups)
        kind = (spec.kind, spec.op)
        writer.writerow(
            [count[spec], networks[spec], *kind, *numbers, shapes[0], " ".join(shapes[1:])]
        )
    return text.getvalue()


def sort_key(spec: KernelSpec) -> tuple[object, ...]:
    """Return what rows are sorted by."""
    return (spec.kind, spec.op, spec.shapes_in, spec.shape_out, spec.kernel, spec.stride)


def format_shape(shape: tuple[int, ...]) -> str:
    """Return a shape as `1x64x56x56`."""
    return "x".join(map(str, shape))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the part's arguments to its parser."""
    parser.add_argument("networks", nargs="+", metavar="NETWORK")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.csv")


def run(args: argparse.Namespace) -> int:
    """Write the prior of the networks that the command line names."""
    if reserved := sorted(set(args.networks) & set(NETWORKS)):
        raise BadInput(f"{', '.join(reserved)}, command line, they are kept for validation")
    count: Counter[KernelSpec] = Counter()
    networks: Counter[KernelSpec] = Counter()
    for network in args.networks:
        specs = operators(network)
        count.update(specs)
        networks.update(set(specs))
        print(f"{network}: {len(specs)} operators", flush=True)
    write_text(args.out, prior_csv(count, networks))
    return 0
