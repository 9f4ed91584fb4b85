"""A kernel from its operator and shapes alone.

Everything else that `Kernel` holds follows from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from nnstretch.kernel import Kernel
from nnstretch.structure.kernel_operators import TRANSPOSED_KIND
from nnstretch.structure.macs import ATTENTION

CONVOLUTIONS = ("conv", "gconv", "dwconv")
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """What somebody who wants to build a kernel has to say."""

    kind: str
    op: str
    shapes_in: tuple[Shape, ...]
    """Activations it reads, NCHW, NLC or NC, without those of the epilogue."""
    shape_out: Shape
    kernel: int = 1
    stride: int = 1
    groups: int = 1


def kernel_of_spec(
    recipe: KernelSpec, name: str, epilogue: tuple[str, ...] = (), layout: str = ""
) -> Kernel:
    """Return the kernel that `fuse_kernels` makes of this operator in a network."""
    first, out = recipe.shapes_in[0], recipe.shape_out
    last = recipe.kind in ("linear", "matmul")
    cin, cout = (first[-1], out[-1]) if last else (channels(first), channels(out))
    sums = epilogue.count("add")
    weights = weight_elements(recipe, cin, cout)
    return Kernel(
        name=name,
        kind=recipe.kind,
        cin=cin,
        cout=cout,
        hw_in=pixels(first, cin),
        hw_out=pixels(out, cout),
        kernel=recipe.kernel,
        stride=recipe.stride,
        groups=recipe.groups,
        batch=out[0],
        macs=macs(recipe, cin),
        read_elements=sum(map(prod, recipe.shapes_in)) + sums * prod(out),
        write_elements=written_elements(recipe),
        weight_elements=weights,
        op=recipe.op,
        epilogue=epilogue,
        shapes_in=recipe.shapes_in + (out,) * sums,
        shape_out=out,
        layout=layout,
    )


def channels(shape: Shape) -> int:
    """Return the channels of a shape."""
    return shape[1] if len(shape) >= 4 else shape[-1]


def pixels(shape: Shape, width: int) -> int:
    """Return the pixels or tokens of a shape."""
    return max(1, prod(shape) // max(1, shape[0] * width))


def macs(recipe: KernelSpec, cin: int) -> int:
    """Return the multiply-accumulates of a kernel."""
    out = prod(recipe.shape_out)
    if recipe.kind in CONVOLUTIONS:
        return out * recipe.kernel**2 * cin // recipe.groups
    if recipe.kind == TRANSPOSED_KIND:
        return prod(recipe.shapes_in[0]) * recipe.kernel**2 * recipe.shape_out[1] // recipe.groups
    if recipe.kind == "linear":
        return out * cin
    if recipe.op == ATTENTION:
        query, key, value = (recipe.shapes_in * 3)[:3]
        return prod(query) * key[-2] + prod(query[:-1]) * key[-2] * value[-1]
    return out * recipe.shapes_in[0][-1] if recipe.kind == "matmul" else 0


def weight_elements(recipe: KernelSpec, cin: int, cout: int) -> int:
    """Return the number of a kernel's weights."""
    if recipe.kind in (*CONVOLUTIONS, TRANSPOSED_KIND):
        return recipe.kernel**2 * cin * cout // recipe.groups + cout
    if recipe.kind == "linear":
        return cin * cout + cout
    return {"batch_norm": 4, "layer_norm": 2}.get(recipe.op, 0) * cout


def written_elements(recipe: KernelSpec) -> int:
    """Return the elements that are written; a split writes all of its parts, which together are
    what it reads.
    """
    if recipe.op in ("chunk", "split", "split_with_sizes", "unbind"):
        return prod(recipe.shapes_in[0])
    return prod(recipe.shape_out)


def spec_of_kernel(kernel: Kernel) -> KernelSpec:
    """Return a kernel without its epilogue and its names."""
    operands = len(kernel.shapes_in) - kernel.epilogue.count("add")
    shapes = kernel.shapes_in[:operands]
    return KernelSpec(
        kernel.kind,
        kernel.op,
        shapes,
        kernel.shape_out,
        kernel.kernel,
        kernel.stride,
        kernel.groups,
    )
