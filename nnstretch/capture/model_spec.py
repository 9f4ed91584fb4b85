"""A MODEL on the command line -> nn.Module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nnstretch.capture.choose_outputs import choose_graph_outputs, choose_module_outputs
from nnstretch.capture.host_process import silence_python
from nnstretch.capture.model_file import call_factory, load_from_factory
from nnstretch.capture.torch_export import CapturedNetwork, structure_of
from nnstretch.errors import BadInput, BrokenFile, UnknownName, closest
from nnstretch.files.checked import checked
from nnstretch.files.limits import BLANK, is_printable, shorten
from nnstretch.files.model_text import (
    ModelSpec,
    format_input_shapes,
    parse_input_shapes,
    parse_model_spec,
)
from nnstretch.files.strict_yaml import parse_yaml
from nnstretch.graph import InputShape

BUILT_BY_SEED = "built_by_seed"
"""Attribute of a network that a factory made: the seed that it drew by."""
INPUT_KEY = "input"
"""What an ONNX file's settings may say: `det.onnx?input=1,3,320,320`."""


def spec_with(spec: str, inputs: Sequence[InputShape], outputs: Sequence[str]) -> str:
    """Return a MODEL with the inputs and outputs of the command line written into it.

    Raises BadInput where it names other outputs itself.
    """
    if not inputs and not outputs:
        return spec
    parsed = parse_model_spec(spec)
    if outputs and parsed.outputs:
        raise BadInput(f"outputs {','.join(outputs)} of {spec}, it names outputs already")
    query = parsed.query
    if inputs and parsed.source.endswith(".onnx"):
        query = ((INPUT_KEY, format_input_shapes(inputs)),)
    return str(replace(parsed, query=query, outputs=tuple(outputs) or parsed.outputs))


@checked
def load_model(spec: str, seed: int = 0) -> nn.Module:
    """Build the network that a MODEL names.

    It is `torchvision:NAME`, `timm:NAME` or `FILE.py:FACTORY`, each with `?key=value&...` for its
    factory; or `FILE.onnx`, with `?input=1,3,320,320` for sizes that it leaves open; or `FILE.pt2`;
    each with `#OUTPUT,...` for some of its outputs. Weights are random but the same every time for
    a `seed`; a factory in a file may load its own. Raises UnknownName, BrokenFile or BadInput with
    the part of `spec` that is at fault.
    """
    if not isinstance(spec, str) or not is_printable(spec):
        raise BadInput(f"model is {shorten(spec)}, needed is text such as torchvision:resnet18")
    parsed = parse_model_spec(spec)
    source = parsed.source
    if source.endswith((".onnx", ".pt2")):
        with silence_python(), torch.random.fork_rng(devices=[]):
            return module_from_graph(read_file(parsed))
    settings = factory_settings(parsed.query)
    module = make_module(spec, source, settings, seed)
    setattr(module, BUILT_BY_SEED, seed)
    return choose_module_outputs(module, parsed.outputs, source) if parsed.outputs else module


def make_module(spec: str, source: str, settings: dict[str, Any], seed: int) -> nn.Module:
    """Make a network of a library or of the user's own file. Raises UnknownName for neither."""
    prefix, _, name = source.partition(":")
    with silence_python(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if prefix == "torchvision" and name:
            return load_torchvision(name, settings)
        if prefix == "timm" and name:
            return load_timm(name, settings)
        if ".py:" in source:
            path, _, factory = source.rpartition(":")
            return load_from_factory(Path(path), factory, settings)
    raise UnknownName(
        f"unknown model {spec!r}, expected torchvision:NAME, timm:NAME, FILE.py:FACTORY, FILE.pt2,"
        " FILE.onnx or a plan FILE.yaml"
    )


def factory_settings(query: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return the arguments of a factory, `key=value&...`. Raises BadInput for one that is no such.

    Values are YAML; null is None, as some factories take it, and so is Python's own word.
    """
    settings: dict[str, Any] = {}
    for key, text in query:
        if not text or key in settings:
            why = "is given twice" if key in settings else "has no value"
            raise BadInput(f"{key} of ?{key}={text} {why}, MODEL, write ?key=value&...")
        try:
            value = parse_yaml(text, f"?{key}=")
        except BrokenFile as error:
            raise BadInput(str(error)) from None
        settings[key] = None if value is BLANK or text == "None" else value
    return settings


def load_torchvision(name: str, settings: dict[str, Any]) -> nn.Module:
    """Build a torchvision model with random weights.

    Raises UnknownName when torchvision has no such network.
    """
    from torchvision import models

    known = models.list_models()
    if name not in known:
        raise UnknownName(
            f"unknown model 'torchvision:{name}', torchvision has no such network"
            f"{closest(name, known)}"
        )
    defaults = disable_auxiliary_heads(models.get_model_builder(name))
    settings = {"weights": None, **defaults, **settings}
    return call_factory(f"torchvision:{name}", models.get_model, settings, name)


def disable_auxiliary_heads(builder: Any) -> dict[str, Any]:
    """Return settings without the heads of GoogLeNet and Inception that only training calls."""
    if builder.__name__ in ("googlenet", "inception_v3"):
        return {"aux_logits": False, "init_weights": False}
    return {}


def load_timm(name: str, settings: dict[str, Any]) -> nn.Module:
    """Build a timm model with random weights. Raises UnknownName when timm has no such network."""
    import timm

    if not timm.is_model(name):
        raise UnknownName(
            f"unknown model 'timm:{name}', timm has no such network"
            f"{closest(name, timm.list_models())}"
        )
    return call_factory(f"timm:{name}", timm.create_model, {"pretrained": False, **settings}, name)


def read_file(parsed: ModelSpec) -> CapturedNetwork:
    """Read the network in an .onnx or .pt2 file. Raises BadInput for settings that it has not."""
    settings = dict(parsed.query)
    known = {INPUT_KEY} if parsed.source.endswith(".onnx") else set[str]()
    if unknown := [key for key in settings if key not in known]:
        raise BadInput(
            f"unknown setting {unknown[0]!r:.80} of {parsed.source}, a file of ONNX takes input and"
            " one of torch.export none"
        )
    if known:
        from nnstretch.capture.onnx.reader import read_onnx

        inputs = parse_input_shapes(settings[INPUT_KEY]) if settings else ()
        captured = read_onnx(Path(parsed.source), inputs)
    else:
        from nnstretch.capture.pt2_file import read_pt2

        captured = read_pt2(Path(parsed.source))
    if not parsed.outputs:
        return captured
    return choose_graph_outputs(captured, parsed.outputs, parsed.source)


def module_from_graph(captured: CapturedNetwork) -> nn.Module:
    """Return the module of a graph that came from a file.

    It keeps the graph as an attribute, since a new capture would lose its module names.
    """
    from nnstretch.capture.rebuild_module import build

    module = build(captured.graph, captured.weights)
    module.captured_graph = captured.graph  # type: ignore[assignment]
    module.size_ranges = captured.size_ranges  # type: ignore[assignment]
    module.structure = structure_of(module)  # type: ignore[assignment]
    return module


__all__ = ["load_model", "spec_with"]
