"""A small residual network as a graph."""

from __future__ import annotations

from nnstretch.graph import Graph, Node, TensorSpec, Value, ValueRef, Weight
from nnstretch.structure.macs import count_macs


def residual(
    blocks: tuple[tuple[int, int], ...], px: int = 16, stem: int = 16, skip: bool = True
) -> Graph:
    """A stem, then stages of (width, blocks), residual unless `skip` is False, then a classifier.

    Written without PyTorch.
    """
    nodes: list[Node] = []
    weights: list[Weight] = []
    entry = TensorSpec((1, 3, px, px))

    def layer(name: str, source: str, cin: int, cout: int, stride: int, size: int) -> str:
        weight = Weight(f"{name}.weight", TensorSpec((cout, cin, 3, 3)))
        weights.append(weight)
        out = TensorSpec((1, cout, size, size))
        args = (ValueRef(source), ValueRef(weight.name), None, (stride, stride), (1, 1), (1, 1), 1)
        nodes.append(
            Node(
                name,
                "conv2d",
                args,
                (out,),
                name,
                macs=count_macs("conv2d", args, out, {weight.name: weight.spec}),
            )
        )
        nodes.append(Node(f"{name}_relu", "relu", (ValueRef(name),), (out,), name))
        return f"{name}_relu"

    at, cin = layer("stem", "x", 3, stem, 1, px), stem
    for s, (width, depth) in enumerate(blocks):
        px = px // 2
        at = layer(f"stage{s}.0", at, cin, width, 2, px)
        for b in range(1, depth):
            body = layer(f"stage{s}.{b}", at, width, width, 1, px)
            if skip:
                out = TensorSpec((1, width, px, px))
                nodes.append(
                    Node(
                        f"add{s}_{b}",
                        "add.Tensor",
                        (ValueRef(body), ValueRef(at)),
                        (out,),
                        f"stage{s}.{b}",
                    )
                )
            at = f"add{s}_{b}" if skip else body
        cin = width
    return classifier(entry, nodes, weights, at, cin)


def classifier(
    entry: TensorSpec, nodes: list[Node], weights: list[Weight], features: str, channels: int
) -> Graph:
    """Return layers and, behind their features, a pool and a linear layer of ten classes."""
    pooled = TensorSpec((1, channels))
    pool = Node("pool", "mean.dim", (ValueRef(features), (2, 3)), (pooled,), "pool")
    weight = Weight("fc.weight", TensorSpec((10, channels)))
    args = (ValueRef("pool"), ValueRef(weight.name), None)
    fc = Node("fc", "linear", args, (TensorSpec((1, 10)),), "fc", macs=10 * channels)
    layers = (*nodes, pool, fc)
    return Graph("toy", (Value("x", entry),), (*weights, weight), layers, ("fc",))
