"""Small bundles for tests, made without torch.

Convolutions of ONNX's own helper, branches that meet in a concat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from nnstretch.bundle.archive import digest
from nnstretch.bundle.bundle import Bundle
from nnstretch.bundle.manifest import Manifest, Port, Subgraph
from nnstretch.bundle.variants import merge_bundles
from nnstretch.graph import TensorSpec

CHANNELS, SIDE = 8, 8
PHONE = ("cpu", "gpu", "dsp")


def feature_map(channels: int = CHANNELS, side: int = SIDE) -> TensorSpec:
    return TensorSpec((1, channels, side, side))


def model_bytes(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    weights: dict[str, np.ndarray],
    opset: int = 17,
) -> bytes:
    def info(port: Port) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(port.name, TensorProto.FLOAT, list(port.spec.shape))

    graph = helper.make_graph(
        list(nodes),
        "subgraph",
        [info(port) for port in inputs],
        [info(port) for port in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return model.SerializeToString()


def conv(source: Port, target: Port, seed: int, depth: int = 1) -> bytes:
    """`depth` 3x3 convolutions and ReLUs in a row."""
    generator = np.random.default_rng(seed)
    weights, nodes, read, width = {}, [], source.name, source.spec.shape[1]
    for layer in range(depth):
        written = target.name if layer == depth - 1 else f"relu{layer}"
        weights[f"w{layer}"] = (
            generator.standard_normal((target.spec.shape[1], width, 3, 3)).astype(np.float32)
            / width
        )
        nodes.append(
            helper.make_node("Conv", [read, f"w{layer}"], [f"conv{layer}"], pads=[1, 1, 1, 1])
        )
        nodes.append(helper.make_node("Relu", [f"conv{layer}"], [written]))
        read, width = written, target.spec.shape[1]
    return model_bytes(nodes, [source], [target], weights)


def concat(sources: Sequence[Port], target: Port) -> bytes:
    return model_bytes(
        [helper.make_node("Concat", [port.name for port in sources], [target.name], axis=1)],
        sources,
        [target],
        {},
    )


def subgraph(
    name: str,
    processor: str,
    data: bytes,
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    **fields: object,
) -> Subgraph:
    return Subgraph(
        name,
        processor,
        f"{name}.onnx",
        digest(data),
        len(data),
        tuple(inputs),
        tuple(outputs),
        **fields,
    )  # type: ignore[arg-type]


def branched_bundle(
    segments: int = 1,
    side: int = SIDE,
    channels: int = CHANNELS,
    depth: int = 1,
    branch_us: tuple[float, float] = (900.0, 1000.0),
    merge_us: float = 40.0,
    sync_us: float = 60.0,
    stem_us: float = 300.0,
    predicted: bool = True,
    team: tuple[str, str] = ("cpu", "dsp"),
) -> Bundle:
    """A convolution on the CPU, then `segments` times.

    Branches on a `team`, by default a CPU and a DSP, that meet in a concat.
    """
    half, full = feature_map(channels // 2, side), feature_map(channels, side)
    image, merged = Port("image", feature_map(3, side)), Port("stem", full)
    files = {"stem.onnx": conv(image, merged, seed=0)}
    subs = [
        subgraph(
            "stem", "cpu", files["stem.onnx"], [image], [merged], predicted_us={"cpu": stem_us}
        )
    ]
    for number in range(1, segments + 1):
        ends = {name: Port(f"s{number}.{name}", half) for name in team}
        for seed, (processor, time_us) in enumerate(zip(team, branch_us, strict=True)):
            data = conv(merged, ends[processor], 10 * number + seed, depth)
            name = f"s{number}_{processor}"
            files[f"{name}.onnx"] = data
            subs.append(
                subgraph(
                    name,
                    processor,
                    data,
                    [merged],
                    [ends[processor]],
                    segment=number,
                    predicted_us={processor: time_us},
                )
            )
        read, merged = tuple(ends.values()), Port(f"s{number}.merged", full)
        data, name = concat(read, merged), f"s{number}_merge"
        files[f"{name}.onnx"] = data
        subs.append(
            subgraph(
                name,
                "cpu",
                data,
                read,
                [merged],
                role="merge",
                segment=number,
                predicted_us={"cpu": merge_us},
            )
        )
    if not predicted:
        subs = [replace(sub, predicted_us={}) for sub in subs]
    sync = dict.fromkeys(range(1, segments + 1), sync_us) if predicted else {}
    return Bundle(
        Manifest(
            "test:branched",
            "mi9" if predicted else None,
            (image,),
            (merged,),
            tuple(subs),
            0.0,
            sync,
        ),
        files,
    )


def several_plans(segments: int = 1) -> Bundle:
    """Three plans, on the quiet chip in this order.

    CPU and DSP, CPU and GPU, GPU and DSP; every time is known on every processor.
    """

    def one(name: str, team: tuple[str, str], us: float) -> Bundle:
        made = branched_bundle(segments, branch_us=(us, us), team=team)
        subs = tuple(
            replace(s, predicted_us=dict.fromkeys(PHONE, s.predicted_us[s.processor]))
            for s in made.manifest.subgraphs
        )
        return Bundle(replace(made.manifest, subgraphs=subs), made.files, name)

    plans = [
        (name, one(name, team, us))
        for name, team, us in (("gpu", ("cpu", "gpu"), 1100.0), ("both", ("gpu", "dsp"), 1300.0))
    ]
    return merge_bundles(one("main", ("cpu", "dsp"), 1000.0), plans)


def branched_latency_us(
    segments: int, branch_us: tuple[float, float] = (900.0, 1000.0), stem_us: float = 300.0
) -> float:
    """What the defaults of `branched_bundle` add up to: slowest branch, synchronisation, merge."""
    return stem_us + segments * (max(branch_us) + 60.0 + 40.0)


def filled_image(value: float = 1.0) -> np.ndarray:
    """An image for `branched_bundle`, of one value."""
    return np.full((1, 3, 8, 8), value, np.float32)


def image(bundle: Bundle, seed: int = 0) -> np.ndarray:
    return (
        np.random.default_rng(seed)
        .standard_normal(bundle.manifest.inputs[0].spec.shape)
        .astype(np.float32)
    )
