"""Backend name -> meter. Runtimes are imported when they are asked for."""

from __future__ import annotations

from nnstretch.errors import BadInput, UnknownName
from nnstretch.profile.backends.meter import Meter

BACKENDS = {
    "onnxruntime": ("float32",),
    "litert": ("int8", "float32"),
    "openvino": ("float32",),
    "torch": ("float32",),
}
"""Element types that can be profiled, the usual one first."""
EXTRAS = {"onnxruntime": "profile", "litert": "litert", "openvino": "openvino", "torch": "capture"}


def meter_for(backend: str, dtype: str | None = None, device: str = "cpu") -> Meter:
    """Return the meter of a backend. Raises UnknownName for a backend or element type that nobody
    measures, BadInput where its runtime is not installed.
    """
    if backend not in BACKENDS:
        raise UnknownName(f"unknown backend {backend!r}, profile, known are {', '.join(BACKENDS)}")
    dtype = dtype or BACKENDS[backend][0]
    if dtype not in BACKENDS[backend]:
        raise UnknownName(
            f"unknown element type {dtype!r}, backend {backend}, it has"
            f" {', '.join(BACKENDS[backend])}"
        )
    try:
        return build_meter(backend, dtype, device)
    except ImportError as error:
        raise BadInput(
            f"backend {backend} is not installed ({error}), profile, pip install"
            f" 'nnstretch[{EXTRAS[backend]}]'"
        ) from error


def meter_at(meter: Meter, device: str) -> Meter:
    """Return the meter at hand for the CPU, one of the same backend for an accelerator.

    Raises BadInput where its runtime is not installed.
    """
    return meter if device == "cpu" else meter_for(meter.name, meter.dtype, device)


def cuda_devices(backend: str) -> int:
    """Return how many CUDA devices a backend can measure here: torch's alone."""
    if backend != "torch":
        return 0
    import torch

    return torch.cuda.device_count()


def cuda_uuid(device: str) -> str:
    """Return the UUID of a CUDA device for its energy meter; empty for the CPU."""
    if device == "cpu":
        return ""
    import torch

    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def build_meter(backend: str, dtype: str, device: str) -> Meter:
    """Build the meter of a backend."""
    if backend == "onnxruntime":
        from nnstretch.profile.backends.onnxruntime_meter import OnnxRuntimeMeter

        return OnnxRuntimeMeter()
    if backend == "litert":
        from nnstretch.profile.backends.litert_meter import LiteRTMeter

        return LiteRTMeter(dtype)
    if backend == "openvino":
        from nnstretch.run.backends.openvino_import import import_openvino

        import_openvino()
        from nnstretch.profile.backends.openvino_meter import OpenVINOMeter

        return OpenVINOMeter()
    from nnstretch.profile.backends.torch_meter import TorchMeter

    return TorchMeter(device)
