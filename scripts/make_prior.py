"""Collect the operators of a zoo of networks: where `nnstretch profile` draws its kernels from.

    python scripts/make_prior.py NETWORK [NETWORK ...] --out nnstretch/profile/prior.csv

One row is one operator with its shapes and how often the networks use it. Networks named in
nnstretch/profile/validation.py are refused: what is to be predicted must not be sampled.
"""

from __future__ import annotations

import argparse
import csv
import io
from collections import Counter
from pathlib import Path

import torch

from nnstretch.capture import default_input, load_model
from nnstretch.capture.torch_export import capture
from nnstretch.files.atomic import write_text
from nnstretch.kernel import WEIGHTED, FusionRules
from nnstretch.profile.sampling.kernel_spec import KernelSpec, spec_of_kernel
from nnstretch.profile.validation import NETWORKS
from nnstretch.structure.kernel_fusion import fuse_kernels

UNFUSED = FusionRules(frozenset((kind, "batch_norm") for kind in WEIGHTED))
COLUMNS = (
    "count",
    "networks",
    "kind",
    "op",
    "kernel",
    "stride",
    "groups",
    "shape_out",
    "shapes_in",
)


def recipes(spec: str) -> list[KernelSpec]:
    module = load_model(spec).eval()
    graph = capture(module, torch.zeros(default_input(spec, module)), spec)
    return [spec_of_kernel(kernel) for kernel in fuse_kernels(graph, UNFUSED) if kernel.shapes_in]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if held := sorted(set(args.networks) & set(NETWORKS)):
        parser.error(f"{', '.join(held)} are kept for validation")
    count: Counter[KernelSpec] = Counter()
    owners: Counter[KernelSpec] = Counter()
    for spec in args.networks:
        found = recipes(spec)
        count.update(found)
        owners.update(set(found))
        print(f"{spec}: {len(found)} operators", flush=True)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for r in sorted(
        count, key=lambda r: (r.kind, r.op, r.shapes_in, r.shape_out, r.kernel, r.stride)
    ):
        shapes = " ".join("x".join(map(str, shape)) for shape in r.shapes_in)
        writer.writerow(
            [
                count[r],
                owners[r],
                r.kind,
                r.op,
                r.kernel,
                r.stride,
                r.groups,
                "x".join(map(str, r.shape_out)),
                shapes,
            ]
        )
    write_text(args.out, text.getvalue())


if __name__ == "__main__":
    main()
