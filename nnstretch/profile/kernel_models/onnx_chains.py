"""Chains of kernels -> one ONNX model, in which each chain reads its own inputs between a head and
a tail.

A sweep over a scratch tensor pushes weights and old buffers out of the near caches, as the rest of
a network does. The head (a sum, never fused) then writes what the chain reads, so that it is as
near as behind a producer in a network, and its name in the runtime's records says where a chain
begins. The tail keeps one element, so that buffers are used again as they are in a network.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnx import helper

from nnstretch.kernel import Kernel
from nnstretch.profile.kernel_models.kernel_shapes import input_shapes
from nnstretch.profile.kernel_models.onnx_builder import OnnxModelBuilder
from nnstretch.profile.kernel_models.onnx_operators import emit
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
        swept = sweep(model, scratch, index)
        value = add_chain(model, chain, swept, index)
        rank = len(chain[-1].shape_out) or 4
        begins = model.integers(*[0] * rank)
        ends = model.integers(*[1] * rank)
        model.write(model.add("Slice", value, begins, ends, name=f"{TAIL}{index}"))
    return model.bytes()


def add_chain(model: OnnxModelBuilder, chain: tuple[Kernel, ...], swept: str, index: int) -> str:
    """Add a chain's kernels, each behind heads of its own inputs, and return the last value."""
    value = ""
    for position, kernel in enumerate(chain):
        shapes = input_shapes(kernel)[1:] if position else input_shapes(kernel)
        values = [value] if position else []
        for number, shape in enumerate(shapes):
            label = f"{index}.{position}.{number}"
            head = model.add("Add", model.read(shape), swept, name=HEAD + label)
            values.append(with_blocked_layout(model, kernel, shape, head, label))
        value = emit(model, kernel, values)
    return value


def sweep(model: OnnxModelBuilder, scratch: str, index: int) -> str:
    """Return one element that depends on all of the scratch tensor having been written."""
    written = model.add("Neg", scratch, name=f"{SWEEP}{index}")
    zero, ones, axis = (model.integers(number) for number in (0, 1, 1))
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


def build_chain(chain: Sequence[Kernel], carried: bool = False) -> bytes:
    """Build a model of one chain; all that its last kernel writes are outputs.

    Where it is carried, it reads behind depthwise convolutions, which write what it reads in the
    layout that they have in a network.

    Raises UnsupportedOp, naming the kernel, where it has no ONNX form.
    """
    model, value = OnnxModelBuilder(), ""
    for position, kernel in enumerate(chain):
        shapes = input_shapes(kernel)[1:] if position else input_shapes(kernel)
        values = [value] if position else []
        for shape in shapes:
            values.append(add_carrier(model, shape) if carried else model.read(shape))
        value = emit(model, kernel, values)
    for name in model.nodes[-1].output:
        model.write(name)
    return model.bytes()


def add_carrier(model: OnnxModelBuilder, shape: tuple[int, ...]) -> str:
    """Add a small convolution that carries the layout and return its result."""
    channels = shape[1]
    weights = model.weight(channels, 1, 3, 3), model.weight(channels)
    return model.add(
        "Conv", model.read(shape), *weights, group=channels, kernel_shape=[3, 3], pads=[1] * 4
    )
