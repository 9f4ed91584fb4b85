"""A MODEL on the command line -> nn.Module."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl

import torch
import yaml
from torch import nn

from nnstretch.capture.silence import silence_python
from nnstretch.capture.torch_export import CapturedNetwork
from nnstretch.errors import BadInput, BrokenFile, NnstretchError, UnknownName, closest

DEFAULT_INPUT = (1, 3, 224, 224)


def load_model(spec: str, seed: int = 0) -> nn.Module:
    """Build the network that a MODEL names.

    It is `torchvision:NAME`, `timm:NAME` or `FILE.py:FACTORY`, each with `?key=value&...` for its
    factory; or `FILE.onnx`, `FILE.pt2`. Weights are random but the same every time for a `seed`; a
    factory in a file may load its own. Raises UnknownName, BrokenFile or BadInput with the part of
    `spec` that is at fault.
    """
    source, _, query = spec.partition("?")
    settings: dict[str, Any] = {key: yaml.safe_load(value) for key, value in parse_qsl(query)}
    prefix, _, name = source.partition(":")
    with silence_python(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if prefix == "torchvision" and name:
            return load_torchvision(name, settings)
        if prefix == "timm" and name:
            return load_timm(name, settings)
        if source.endswith(".onnx"):
            return load_onnx_module(source)
        if source.endswith(".pt2"):
            return load_pt2_module(source)
        if ".py:" in source:
            path, _, factory = source.rpartition(":")
            return load_from_factory(Path(path), factory, settings)
    raise UnknownName(
        f"unknown model {spec!r}, expected torchvision:NAME, timm:NAME, FILE.py:FACTORY, FILE.pt2,"
        " FILE.onnx or a plan FILE.yaml"
    )


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


def load_from_factory(path: Path, factory: str, settings: dict[str, Any]) -> nn.Module:
    """Run a FILE.py, the user's own program, and call its factory.

    Raises UnknownName when file or factory do not exist; BadInput when no module is returned.
    """
    if not path.is_file():
        raise UnknownName(f"no model file {path}, it does not exist")
    module = run_model_file(path)
    make = getattr(module, factory, None)
    if not callable(make):
        public = ", ".join(name for name in vars(module) if not name.startswith("_"))
        raise UnknownName(f"no factory {factory!r}, model file {path}, it defines {public}")
    network = call_factory(f"{path}:{factory}", make, settings)
    if not isinstance(network, nn.Module):
        raise BadInput(
            f"no network from {path}:{factory}, it returned a {type(network).__name__}, not a"
            " torch.nn.Module"
        )
    return network


def run_model_file(path: Path) -> ModuleType:
    """Run a Python file as a module and return it. Raises BrokenFile when it fails."""
    module_spec = importlib.util.spec_from_file_location(f"nnstretch_model_{path.stem}", path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        module_spec.loader.exec_module(module)
    except NnstretchError:
        raise
    except (Exception, SystemExit) as error:
        raise BrokenFile(
            f"cannot run model file {path}, {type(error).__name__}, {error}"
        ) from error
    finally:
        sys.path.pop(0)
    return module


def load_onnx_module(source: str) -> nn.Module:
    """Read an ONNX file as a module."""
    from nnstretch.capture.onnx.reader import read_onnx

    return module_from_graph(read_onnx(Path(source)))


def load_pt2_module(source: str) -> nn.Module:
    """Rebuild the program that torch.export saved as ordinary layers."""
    from nnstretch.capture.pt2_file import read_pt2

    return module_from_graph(read_pt2(Path(source)))


def module_from_graph(captured: CapturedNetwork) -> nn.Module:
    """Return the module of a graph that came from a file.

    It keeps the graph as an attribute, since a new capture would lose its module names.
    """
    from nnstretch.capture.rebuild_module import build

    module = build(captured.graph, captured.weights)
    module.captured_graph = captured.graph  # type: ignore[assignment]
    module.input_shape = captured.graph.inputs[0].spec.shape  # type: ignore[assignment]
    return module


def call_factory(what: str, make: Any, settings: dict[str, Any], *args: Any) -> nn.Module:
    """Call a model's factory. Raises BadInput, with the reason in one line, when it fails."""
    try:
        return make(*args, **settings)  # type: ignore[no-any-return]
    except NnstretchError:
        raise
    except (Exception, SystemExit) as error:
        settings_text = ", ".join(f"{k}={v}" for k, v in settings.items()) or "no settings"
        reason = " ".join(str(error).split())[:300]
        raise BadInput(
            f"cannot make {what}, called with {settings_text}, {type(error).__name__}: {reason}"
        ) from error


def default_input(spec: str, module: nn.Module) -> tuple[int, ...]:
    """Return the input shape that timm or the module names, batch 1; else 1x3x224x224."""
    config = getattr(module, "default_cfg", None) or {}
    size = getattr(module, "input_shape", None) or config.get("input_size")
    if size and len(size) == 3:
        return (1, *size)
    if size and len(size) == 4:
        return tuple(size)
    return DEFAULT_INPUT


__all__ = ["DEFAULT_INPUT", "default_input", "load_model"]
