"""The ONNX Runtime backend.

One session per sub-graph, one thread, the numbers everything else is compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnxruntime  # type: ignore[import-untyped]

from nnstretch.bundle.manifest import Subgraph
from nnstretch.bundle.model_files.check import member_label
from nnstretch.bundle.model_files.edges import TensorInfo, check_names, check_written
from nnstretch.errors import BrokenFile
from nnstretch.run.backends.io_check import cannot_run, check_outputs, first_line
from nnstretch.run.in_place_merge import copy_into

TYPES = {"float": "float32", "double": "float64", "float16": "float16", "bfloat16": "bfloat16"}
"""ONNX Runtime's element types where they are not numpy's names."""
FATAL = 4
"""Only fatal messages: everything else arrives as an exception and is told in one line."""


class OnnxRuntime:
    """Computes one sub-graph on the calling thread; several may call at once.

    `run` needs no IO binding: `session.run` already reads numpy's memory in place and lends its
    outputs without a copy, in arrays that are new every time, as `Values` need them. Binding at
    each call takes microseconds longer; binding once (`bind`) takes less.
    """

    def __init__(self, subgraph: Subgraph, model: bytes, bundle: str, threads: int = 1) -> None:
        self._where = member_label(subgraph, bundle)
        self._reads, self._ports = subgraph.inputs, subgraph.outputs
        try:
            # Without `enable_fallback=0` it prints what went wrong on standard output, and tries
            # the same again.
            self._session = onnxruntime.InferenceSession(
                model, _options(threads), providers=["CPUExecutionProvider"], enable_fallback=0
            )
        except Exception as error:
            raise BrokenFile(
                f"{self._where}, ONNX Runtime cannot load it ({first_line(error)})"
            ) from error
        check_names(self._where, "reads", subgraph.inputs, _tensor_info(self._session.get_inputs()))
        check_written(self._where, subgraph.outputs, _tensor_info(self._session.get_outputs()))
        self._names = subgraph.output_names
        # Below the checks of `InferenceSession.run`, which are those made above, every time again
        # and with Python's lock.
        self._run = getattr(self._session, "_sess", self._session).run

    def run(self, inputs: Mapping[str, np.ndarray], /) -> Sequence[np.ndarray]:
        """Run the sub-graph; see `Backend`.

        Raises BrokenFile when ONNX Runtime refuses, BadInput for an index outside of a table.
        """
        try:
            outputs: Sequence[np.ndarray] = self._run(self._names, inputs, None)
        except Exception as error:
            raise cannot_run(self._where, "ONNX Runtime", self._reads, error) from error
        check_outputs(self._where, self._ports, outputs)
        return outputs

    def bind(
        self, reads: Mapping[str, np.ndarray], writes: Sequence[np.ndarray], /
    ) -> Callable[[], None]:
        """Prepare calls for fixed memory; see `BindableBackend`.

        Raises BrokenFile when ONNX Runtime refuses, BadInput for an index outside of a table.
        """
        binding = self._session.io_binding()
        for name, array in reads.items():
            binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        # It writes without gaps only: parts of a tensor that is cut along an inner axis are copied.
        buffers: list[np.ndarray] = []
        takes: list[tuple[Callable[[np.ndarray], None], np.ndarray]] = []
        for array in writes:
            buffer = array
            if not array.flags.c_contiguous:
                buffer = np.empty(array.shape, array.dtype)
                takes.append((copy_into(array), buffer))
            buffers.append(buffer)
        for name, array in zip(self._names, buffers, strict=True):
            binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        # Below the checks of `run_with_iobinding`, which are for graphs on other devices.
        run, bound = (
            getattr(self._session, "_sess", self._session).run_with_iobinding,
            getattr(binding, "_iobinding", binding),
        )

        def call(
            kept: object = (binding, reads, buffers),
        ) -> None:  # the binding has but the addresses of what is kept
            try:
                run(bound, None)
                for take, buffer in takes:
                    take(buffer)
            except Exception as error:
                raise cannot_run(self._where, "ONNX Runtime", self._reads, error) from error

        return call


def _tensor_info(args: Sequence[onnxruntime.NodeArg]) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for arg in args:
        shape = tuple(size if isinstance(size, int) else None for size in arg.shape)
        tensors[arg.name] = TensorInfo(shape, _dtype(arg.type))
    return tensors


def _dtype(name: str) -> str:
    element = name.removeprefix("tensor(").removesuffix(")")
    return TYPES.get(element, element)


def _options(threads: int) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = FATAL
    return options
