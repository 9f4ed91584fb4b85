"""Backend name -> meter. Runtimes are imported when they are asked for."""

from __future__ import annotations

from nnstretch.errors import BadInput, UnknownName
from nnstretch.profile.meter import Meter

BACKENDS = {"onnxruntime": ("float32",), "litert": ("int8", "float32"), "openvino": ("float32",), "torch": ("float32",)}
"""Element types that can be profiled, the usual one first."""
EXTRAS = {"onnxruntime": "profile", "litert": "litert", "openvino": "openvino", "torch": "capture"}


def meter_for(backend: str, dtype: str | None = None, device: str = "cpu") -> Meter:
    """Raises UnknownName for a backend or element type that nobody measures, BadInput where its runtime is not installed."""
    if backend not in BACKENDS:
        raise UnknownName(f"unknown backend {backend!r}, command line, known are {', '.join(BACKENDS)}")
    dtype = dtype or BACKENDS[backend][0]
    if dtype not in BACKENDS[backend]:
        raise UnknownName(f"unknown element type {dtype!r}, backend {backend}, it has {', '.join(BACKENDS[backend])}")
    try:
        return built(backend, dtype, device)
    except ImportError as error:
        raise BadInput(f"backend {backend} is not installed ({error}), command line, pip install 'nnstretch[{EXTRAS[backend]}]'") from error


def cuda_devices(backend: str) -> int:
    """How many CUDA devices a backend can measure here: torch's alone."""
    if backend != "torch":
        return 0
    import torch

    return torch.cuda.device_count()


def built(backend: str, dtype: str, device: str) -> Meter:
    if backend == "onnxruntime":
        from nnstretch.profile.ort import OnnxRuntime

        return OnnxRuntime()
    if backend == "litert":
        from nnstretch.profile.litert import LiteRT

        return LiteRT(dtype)
    if backend == "openvino":
        from nnstretch.profile.openvino_meter import OpenVino

        return OpenVino()
    from nnstretch.profile.torch_meter import Torch

    return Torch(device)
