"""The bundle that the soak serves, and the disturbances that it runs under."""

from __future__ import annotations

import random

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from nnstretch.bundle.archive import digest
from nnstretch.bundle.bundle import Bundle
from nnstretch.bundle.manifest import Manifest, Port, Subgraph
from nnstretch.graph import TensorSpec
from nnstretch.schedule import Disturbances, Interference, Outage
from nnstretch.soc import Processor

PROCESSORS = (Processor("cpu", "cpu", 2), Processor("gpu", "gpu", 2), Processor("dsp", "dsp", 2))
BRANCH_US = 400.0
STEM_US = 100.0
MERGE_US = 50.0
LATENCY_US = STEM_US + BRANCH_US + MERGE_US


def toy() -> Bundle:
    """A stem, three branches, and where they meet.

    1x1 convolutions, so that the runtime is what is tried.
    """
    image, stem = (
        Port("image", TensorSpec((1, 4, 4, 4), "float32")),
        Port("stem", TensorSpec((1, 4, 4, 4), "float32")),
    )
    ends = tuple(Port(f"end.{p.name}", TensorSpec((1, 4, 4, 4), "float32")) for p in PROCESSORS)
    merged = Port("merged", TensorSpec((1, 12, 4, 4), "float32"))
    files = {"stem.onnx": convolution(image, stem, 0)} | {
        f"{p.name}.onnx": convolution(stem, e, 1) for p, e in zip(PROCESSORS, ends, strict=True)
    }
    files["merge.onnx"] = model(
        [helper.make_node("Concat", [e.name for e in ends], [merged.name], axis=1)],
        ends,
        merged,
        {},
    )
    times = {p.name: 1.0 + k / 4 for k, p in enumerate(PROCESSORS)}

    def sub(
        name: str,
        processor: str,
        reads: tuple[Port, ...],
        writes: Port,
        time_us: float,
        role: str = "branch",
        segment: int = 0,
    ) -> Subgraph:
        data = files[f"{name}.onnx"]
        predicted = {p: time_us * factor for p, factor in times.items()}
        return Subgraph(
            name,
            processor,
            f"{name}.onnx",
            digest(data),
            len(data),
            reads,
            (writes,),
            role=role,
            segment=segment,
            predicted_us=predicted,
        )

    branches = [
        sub(p.name, p.name, (stem,), e, BRANCH_US, segment=1)
        for p, e in zip(PROCESSORS, ends, strict=True)
    ]
    subs = (
        sub("stem", "cpu", (image,), stem, STEM_US),
        *branches,
        sub("merge", "cpu", ends, merged, MERGE_US, "merge", 1),
    )
    return Bundle(Manifest("soak", None, (image,), (merged,), subs, 0.0), files)


def convolution(source: Port, target: Port, seed: int) -> bytes:
    weight = np.random.default_rng(seed).standard_normal((4, 4, 1, 1)).astype(np.float32)
    return model(
        [helper.make_node("Conv", [source.name, "w"], [target.name])],
        (source,),
        target,
        {"w": weight},
    )


def model(
    nodes: list[onnx.NodeProto],
    sources: tuple[Port, ...],
    target: Port,
    weights: dict[str, np.ndarray],
) -> bytes:
    infos = [
        helper.make_tensor_value_info(p.name, TensorProto.FLOAT, list(p.spec.shape))
        for p in (*sources, target)
    ]
    initial = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "toy", infos[:-1], infos[-1:], initial)
    return bytes(
        helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
        ).SerializeToString()
    )


def trouble(rng: random.Random, span_us: float, count: int) -> Disturbances:
    """Each processor fails and is kept busy `count` times at random, for about a hundredth of the
    time each.
    """
    fails, busy = [], []
    for processor in PROCESSORS:
        for _ in range(count):
            at_us, lasts_us = (
                rng.uniform(0, span_us),
                rng.expovariate(100 / span_us) * 10 / count + 1,
            )
            fails.append(Outage(processor.name, at_us, at_us + lasts_us))
            at_us = rng.uniform(0, span_us)
            busy.append(
                Interference(processor.name, at_us, at_us + lasts_us, rng.uniform(0.2, 0.9))
            )
    return Disturbances(tuple(busy), tuple(fails))
