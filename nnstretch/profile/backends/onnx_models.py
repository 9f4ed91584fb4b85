"""Chains of kernels -> one ONNX model, in which each chain reads its own inputs between a head and
a tail.

A sweep over a scratch tensor pushes weights and old buffers out of the near caches, as the rest of
a network does. The head (a sum, never fused) then writes what the chain reads, so that it is as
near as behind a producer in a network, and its name in the runtime's records says where a chain
begins. The tail keeps one element, so that buffers are used again as they are in a network.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import helper

from nnstretch.kernel import Kernel
from nnstretch.profile.backends.onnx_operators import OnnxModelBuilder, emit, inputs_of
from nnstretch.profile.sampling.kernel_spec import CONVOLUTIONS

HEAD, TAIL, CARRIER, SWEEP = "head", "tail", "carrier", "sweep"
"""Names of what is built around a chain and not counted."""

SWEPT = 2**18
"""Elements of the scratch tensor.

1 MiB read and 1 MiB written, the near cache of a core or about half of it.
"""


def build(chains: Sequence[tuple[Kernel, ...]]) -> bytes:
    """Build a model of all chains side by side.

    Raises UnsupportedOp, naming the kernel, for a kind that has no ONNX form here.
    """
    model = OnnxModelBuilder()
    scratch = model.read((1, SWEPT))
    for index, chain in enumerate(chains):
        value, swept = "", sweep(model, scratch, index)
        for position, kernel in enumerate(chain):
            fresh = []
            for i, shape in enumerate(inputs_of(kernel)[bool(position) :]):
                label = f"{index}.{position}.{i}"
                fresh.append(
                    with_blocked_layout(
                        model,
                        kernel,
                        shape,
                        model.add("Add", model.read(shape), swept, name=HEAD + label),
                        label,
                    )
                )
            value = emit(model, kernel, [value, *fresh] if position else fresh)
        rank = len(chain[-1].shape_out) or 4
        zeros, ones = (
            model.constant(np.zeros(rank, np.int64)),
            model.constant(np.ones(rank, np.int64)),
        )
        model.write(model.add("Slice", value, zeros, ones, name=f"{TAIL}{index}"))
    return model.bytes()


def sweep(model: OnnxModelBuilder, scratch: str, index: int) -> str:
    """Return one element that depends on all of the scratch tensor having been written."""
    written = model.add("Neg", scratch, name=f"{SWEEP}{index}")
    zero, ones, axis = (model.constant(np.array([n])) for n in (0, 1, 1))
    return model.add("Slice", written, zero, ones, axis, name=f"{SWEEP}{index}.slice")


def with_blocked_layout(
    model: OnnxModelBuilder, kernel: Kernel, shape: tuple[int, ...], value: str, label: str
) -> str:
    """Add a depthwise 1x1 convolution that writes a map in blocks, for kernels without weights.

    Its activation keeps a sum behind it from being fused into it.
    """
    if kernel.layout != "blocked" or kernel.kind in CONVOLUTIONS or len(shape) != 4:
        return value
    out, channels = f"{CARRIER}{label}", shape[1]
    weights = [value, model.weight(channels, 1, 1, 1), model.weight(channels)]
    model.nodes.append(
        helper.make_node(
            "Conv", weights, [f"{out}.sum"], name=out, group=channels, kernel_shape=[1, 1]
        )
    )
    model.nodes.append(helper.make_node("Relu", [f"{out}.sum"], [out], name=f"{out}.relu"))
    return out
