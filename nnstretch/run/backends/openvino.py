"""The OpenVINO backend: sub-graphs in ONNX form on any device that OpenVINO reports."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from nnstretch.bundle.manifest import Subgraph
from nnstretch.bundle.model_files.check import member_label
from nnstretch.bundle.model_files.check_onnx import IR_VERSIONS, OPSETS
from nnstretch.bundle.model_files.edges import TensorInfo, check_read, check_written
from nnstretch.bundle.model_files.onnx_file import read_onnx
from nnstretch.errors import BadInput, BrokenFile, Stuck, UnknownName, UnsupportedOp
from nnstretch.run.backends.io_check import check_outputs, first_line, refusal_label
from nnstretch.run.backends.openvino_import import import_openvino

if TYPE_CHECKING:
    import openvino


class OpenVINOBackend:
    """Computes one sub-graph, compiled for latency, with one inference request.

    A request has one set of tensors: a lock makes a second caller wait. Inputs are read in place;
    outputs are copied out, since the next call writes over them. On the CPU the numbers are float32
    throughout and `threads` bounds the threads; other devices compute in what they are made for.
    """

    def __init__(
        self, subgraph: Subgraph, model: bytes, bundle: str, device: str = "CPU", threads: int = 1
    ) -> None:
        """Compile a sub-graph. Raises BadInput where OpenVINO is missing, UnknownName where it
        finds no such device, BrokenFile or UnsupportedOp for the file, Stuck in a fork of a
        process that has used it.
        """
        self._where = member_label(subgraph, bundle)
        self._ports = subgraph.outputs
        self._lock = Lock()
        core = core_of_process()
        check_device(core, device)
        try:
            read = core.read_model(model)
        except Exception as error:
            raise BrokenFile(
                f"{self._where}, OpenVINO cannot load it ({first_line(error)})"
            ) from error
        reads = check_read(self._where, subgraph.inputs, _tensor_info(read.inputs))
        check_written(self._where, subgraph.outputs, _tensor_info(read.outputs))
        check_resizes(refusal_label(subgraph, bundle, "openvino"), model)
        try:
            compiled = core.compile_model(read, device, _settings(device, threads))
            self._request = compiled.create_infer_request()
        except Exception as error:
            raise BrokenFile(
                f"{self._where}, OpenVINO cannot compile it for {device} ({first_line(error)})"
            ) from error
        self._feeds = [(port.name, _index(compiled.inputs, port.name)) for port in reads]
        self._writes = [_index(compiled.outputs, port.name) for port in subgraph.outputs]

    def run(self, inputs: Mapping[str, np.ndarray], /) -> Sequence[np.ndarray]:
        """Run the sub-graph; see `Backend`. Raises BrokenFile when OpenVINO refuses, Stuck
        in a fork.
        """
        from openvino import Tensor

        core_of_process()

        try:
            with self._lock:
                for name, index in self._feeds:
                    self._request.set_input_tensor(index, Tensor(inputs[name], shared_memory=True))
                self._request.infer(share_outputs=True)
                outputs = [
                    self._request.get_output_tensor(index).data.copy() for index in self._writes
                ]
        except Exception as error:
            raise BrokenFile(
                f"{self._where}, OpenVINO cannot run it ({first_line(error)})"
            ) from error
        check_outputs(self._where, self._ports, outputs)
        return outputs


def check_resizes(where: str, model: bytes) -> None:
    """Refuse a Resize that OpenVINO would compute otherwise, without a word.

    Raises UnsupportedOp.
    """
    for node in read_onnx(model, OPSETS, IR_VERSIONS).nodes:
        unknown = ["antialias"]
        if "mode" in node.attributes and node.attributes["mode"].text == "cubic":
            unknown.append("exclude_outside")
        for name in unknown if node.op == "Resize" else ():
            if name in node.attributes and any(node.attributes[name].integers):
                raise UnsupportedOp(f"{where}, OpenVINO has no {node} of {name} 1")


def check_device(core: openvino.Core, device: str) -> None:
    """Raise UnknownName, with the devices there are.

    `GPU` stands for `GPU.0` where there are several.
    """
    devices = list(core.available_devices)
    if not any(name == device or name.startswith(f"{device}.") for name in devices):
        raise UnknownName(
            f"unknown device {device!r}, backend openvino, it finds {', '.join(devices) or 'none'}"
        )


_used_in: set[int] = set()
"""The process whose threads OpenVINO's are, as soon as there is one."""


def core_of_process() -> openvino.Core:
    """Return the core of all sub-graphs. Raises Stuck in a fork of a process that has one."""
    return _core(os.getpid())


@cache
def _core(process: int) -> openvino.Core:
    """Return the core of all sub-graphs of a process: it holds the plug-ins of the devices.

    OpenVINO's threads are those of the whole library: in a fork they are missing, and it would wait
    for them for ever.
    """
    if _used_in - {process}:
        raise Stuck(
            f"process {process} has no threads, backend openvino, it is a fork of one that has used"
            " OpenVINO: fork first, or start a process instead (multiprocessing's spawn)"
        )
    try:
        library = import_openvino()
    except ImportError as error:
        raise BadInput(
            f"OpenVINO is not installed ({first_line(error)}), backend openvino, pip install"
            " 'nnstretch[openvino]'"
        ) from error
    _used_in.add(process)
    core: openvino.Core = library.Core()
    return core


def _settings(device: str, threads: int) -> dict[str, Any]:
    """Return settings of one thread: those of `nnstretch.schedule` are pinned already.

    OpenVINO would pin its own to cores of its choice.
    """
    on_cpu = {
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
        "ENABLE_CPU_PINNING": False,
    }
    return {"PERFORMANCE_HINT": "LATENCY", **(on_cpu if device == "CPU" else {})}


def _tensor_info(ports: Sequence[Any]) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for port in ports:
        dtype = np.dtype(port.element_type.to_dtype()).name
        tensors[port.any_name] = TensorInfo(_shape(port), dtype)
    return tensors


def _shape(port: Any) -> tuple[int | None, ...] | None:
    if port.partial_shape.rank.is_dynamic:
        return None
    return tuple(size.get_length() if size.is_static else None for size in port.partial_shape)


def _index(ports: Sequence[Any], name: str) -> int:
    return next(index for index, port in enumerate(ports) if name in port.names)
