"""Who computes which sub-graph: names of backends, what each can read, and loading.

Backends behind one protocol (`nnstretch.protocols.Backend`), each in a file of its own and loaded
only where it is chosen. No two sub-graphs share one: outputs are named in an ONNX file, so no two
sub-graphs can be the same ONNX file, and an interpreter of LiteRT belongs to one thread at a time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from nnstretch.bundle.bundle import Bundle
from nnstretch.bundle.manifest import Manifest, Subgraph
from nnstretch.bundle.model_files.check import check_file
from nnstretch.errors import BadInput, UnknownName
from nnstretch.protocols import Backend

READS = {"onnxruntime": "onnx", "litert": "litert", "openvino": "onnx", "torch": "onnx"}
"""The format that each backend can read."""
DEFAULTS = {"onnx": "onnxruntime", "litert": "litert"}
SHAREABLE = frozenset({"onnxruntime", "torch"})
"""Backends that several threads may call at once without waiting for each other."""
CHOICES = "onnxruntime, litert, openvino[:DEVICE], torch[:cpu|:cuda[:N]]"
DEVICE_MEMORY_PREFIX = "torch:cuda"
"""How names of backends begin that copy to and from their device apart from its compute
(`protocols.DeviceBackend`).
"""
TORCH_DEVICE = re.compile(r"cpu|cuda(:\d{1,3})?")

Choice = str | Mapping[str, str] | None
"""NAME[,PROCESSOR=NAME...], or names by processor.

Whoever is left out computes with its format's default.
"""


def choose_backends(choice: Choice, bundle: Bundle) -> dict[str, str]:
    """Return the backend of every sub-graph.

    Raises UnknownName for a backend or processor that is not there, BadInput where a backend cannot
    read a file.
    """
    everyone, by_processor = _parse_choice(choice)
    used = dict.fromkeys(sub.processor for sub in bundle.manifest.subgraphs)
    if unknown := [name for name in by_processor if name not in used]:
        raise UnknownName(
            f"unknown processor {unknown[0]!r}, backend for {bundle.name}, it uses"
            f" {', '.join(used)}"
        )
    names: dict[str, str] = {}
    for sub in bundle.manifest.subgraphs:
        names[sub.name] = by_processor.get(sub.processor, everyone) or DEFAULTS[sub.format]
        _check_readable(names[sub.name], sub, bundle.name)
    return names


def describe_choice(names: Mapping[str, str], manifest: Manifest) -> dict[str, str]:
    """Return the backends of each processor for people, nearly always one."""
    backends_by_processor: dict[str, dict[str, None]] = {}
    for sub in manifest.subgraphs:
        backends_by_processor.setdefault(sub.processor, {})[names[sub.name]] = None
    return {processor: ", ".join(backends) for processor, backends in backends_by_processor.items()}


def load_backend(
    name: str, subgraph: Subgraph, model: bytes, bundle: str, threads: int = 1
) -> Backend:
    """Load one sub-graph, ready to run; its file is checked before a runtime sees it.

    Raises BrokenFile, or BadInput where the backend's package is missing.
    """
    check_file(subgraph, model, bundle)
    kind, _, device = name.partition(":")
    if kind == "openvino":
        from nnstretch.run.backends.openvino import OpenVINOBackend

        return OpenVINOBackend(subgraph, model, bundle, device or "CPU", threads)
    if kind == "litert":
        from nnstretch.run.backends.litert import LiteRTBackend

        return LiteRTBackend(subgraph, model, bundle, threads)
    if kind == "torch":
        return _torch(subgraph, model, bundle, device or "cpu", threads)
    try:
        from nnstretch.run.backends.onnxruntime_cpu import OnnxRuntime
    except ImportError as error:
        raise BadInput(
            f"ONNX Runtime is not installed ({error}), backend onnxruntime, pip install"
            " 'nnstretch[run]'"
        ) from error
    return OnnxRuntime(subgraph, model, bundle, threads)


def _torch(subgraph: Subgraph, model: bytes, bundle: str, device: str, threads: int) -> Backend:
    if device == "cpu":
        from nnstretch.run.backends.torch_cpu import TorchBackend

        return TorchBackend(subgraph, model, bundle, threads)
    from nnstretch.run.backends.torch_cuda import TorchCuda

    return TorchCuda(subgraph, model, bundle, device)


def _parse_choice(choice: Choice) -> tuple[str, dict[str, str]]:
    """Return the backend of all processors, empty where none was given, and those of single
    ones.
    """
    if choice is None:
        return "", {}
    everyone, by_processor = [], {}
    if isinstance(choice, Mapping):
        by_processor = dict(choice)
    else:
        for word in str(choice).split(","):
            processor, equals, name = word.strip().rpartition("=")
            if not equals:
                everyone.append(name)
            elif by_processor.setdefault(processor, name) != name:
                raise BadInput(
                    f"backends {by_processor[processor]} and {name}, processor {processor}, it can"
                    " have one"
                )
    if len(everyone) > 1:
        raise BadInput(
            f"backends {' and '.join(everyone)}, all processors, one for all or PROCESSOR=NAME for"
            " each"
        )
    for name in (*everyone, *by_processor.values()):
        _check_known(name)
    return (everyone or [""])[0], by_processor


def _check_known(name: object) -> None:
    kind, colon, device = str(name).partition(":")
    if kind not in READS:
        raise UnknownName(f"unknown backend {str(name)[:40]!r}, session, it is one of {CHOICES}")
    if colon and kind == "torch" and not TORCH_DEVICE.fullmatch(device):
        raise UnknownName(
            f"unknown device {device[:40]!r}, backend torch, it is one of cpu, cuda, cuda:N"
        )
    if colon and (kind not in ("openvino", "torch") or not device):
        raise UnknownName(
            f"unknown device {device[:40]!r}, backend {kind},"
            f" {'none is named' if kind == 'openvino' else 'it has one only'}"
        )


def _check_readable(name: str, sub: Subgraph, bundle: str) -> None:
    readable = READS[name.partition(":")[0]]
    if readable != sub.format:
        raise BadInput(
            f"backend {name}, sub-graph {sub.name} of {bundle}, it reads {readable} and the file is"
            f" {sub.format}"
        )
