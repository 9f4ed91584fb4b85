"""Graphs of modules with a stage each."""

from __future__ import annotations

from nnstretch.graph import TensorSpec
from nnstretch.partition.connect import PipelineConfig
from nnstretch.partition.module_graph import Module
from nnstretch.pipeline import TensorDecl

MAP = TensorSpec((3, 3))


def module(name: str, inputs: str, outputs: int = 1, spec: TensorSpec = MAP) -> Module:
    """Of 3x3 tensors, inputs named by letters."""
    return Module(
        name,
        tuple(TensorDecl(letter, spec) for letter in inputs),
        tuple(TensorDecl(f"o{i}", spec) for i in range(outputs)),
        (TensorDecl("w", MAP),),
    )


A, B, C = module("a", "xy", 2), module("b", "xy"), module("c", "xyz")


def two() -> PipelineConfig:
    """a -> b, and the pipeline's ends."""
    config = PipelineConfig()
    config["input"]["in"].connect(config[A]["input"]["x"])
    config[A]["output"][0].connect(config[B]["input"]["x"])
    config[B]["output"][0].connect(config["output"][0])
    return config
