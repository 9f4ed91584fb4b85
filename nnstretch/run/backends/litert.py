"""The LiteRT backend: one interpreter per sub-graph, of ai-edge-litert or, where only that is
installed, tflite-runtime.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from threading import Lock
from typing import Any

import numpy as np

from nnstretch.bundle.manifest import Subgraph
from nnstretch.bundle.model_files.check import member_label
from nnstretch.bundle.model_files.edges import TensorInfo, argument_order, check_order
from nnstretch.errors import BadInput, BrokenFile
from nnstretch.run.backends.io_check import cannot_run, check_outputs, first_line
from nnstretch.run.in_place_merge import copy_into

SILENCE = Lock()
"""Of whoever silences the error stream."""
PACKAGES = ("ai_edge_litert", "tflite_runtime")


class LiteRTBackend:
    """Computes one sub-graph on the calling thread, int8 or float32, exactly as its file has it.

    An interpreter has one set of tensors and belongs to one thread at a time: every sub-graph has
    its own, and a lock around feed, invoke and read makes a second caller wait. Inputs are copied
    in and outputs out, since the next call writes over both; views (`tensor()`) would save neither
    copy.
    """

    def __init__(self, subgraph: Subgraph, model: bytes, bundle: str, threads: int = 1) -> None:
        self._where = member_label(subgraph, bundle)
        self._subgraph = subgraph
        self._lock = Lock()
        interpreter = _interpreter_class()
        try:
            with _silence_greeting():
                self._interpreter: Any = interpreter(model_content=model, num_threads=threads)
                self._interpreter.allocate_tensors()
                reads, writes = (
                    self._interpreter.get_input_details(),
                    self._interpreter.get_output_details(),
                )
        except Exception as error:
            raise BrokenFile(
                f"{self._where}, LiteRT cannot load it ({first_line(error)})"
            ) from error
        reads = [reads[index] for index in argument_order([read["name"] for read in reads])]
        check_order(self._where, "reads", subgraph.inputs, list(map(_tensor_info, reads)))
        check_order(self._where, "writes", subgraph.outputs, list(map(_tensor_info, writes)))
        # numpy copies without Python's lock; `set_tensor` and `get_tensor` would hold it, and other
        # branches with it.
        tensor = self._interpreter.tensor
        memory = (tensor(read["index"]) for read in reads)
        self._feeds = list(zip(subgraph.input_names, memory, strict=True))
        self._writes = [tensor(write["index"]) for write in writes]

    def run(self, inputs: Mapping[str, np.ndarray], /) -> Sequence[np.ndarray]:
        """Run the sub-graph; see `Backend`.

        Raises BrokenFile when LiteRT refuses, BadInput for an index outside of a table.
        """
        interpreter = self._interpreter
        try:
            with self._lock:
                for name, memory in self._feeds:
                    np.copyto(memory(), inputs[name], casting="no")
                interpreter.invoke()
                outputs = [memory().copy() for memory in self._writes]
        except Exception as error:
            raise cannot_run(self._where, "LiteRT", self._subgraph.inputs, error) from error
        check_outputs(self._where, self._subgraph.outputs, outputs)
        return outputs

    def bind(
        self, reads: Mapping[str, np.ndarray], writes: Sequence[np.ndarray], /
    ) -> Callable[[], None]:
        """Prepare calls for fixed memory; see `BindableBackend`.

        Raises BrokenFile when LiteRT refuses, BadInput for an index outside of a table.
        """
        feeds = [(memory, reads[name]) for name, memory in self._feeds]
        takes = [
            (copy_into(array), memory) for array, memory in zip(writes, self._writes, strict=True)
        ]
        lock, invoke, copy = self._lock, self._interpreter.invoke, np.copyto

        def call() -> None:
            try:
                with lock:
                    for memory, array in feeds:
                        copy(memory(), array, "no")
                    invoke()
                    for take, memory in takes:
                        take(memory())
            except Exception as error:
                raise cannot_run(self._where, "LiteRT", self._subgraph.inputs, error) from error

        return call


@cache
def _interpreter_class() -> Any:
    """Return the interpreter of the first package that can be loaded.

    Raises BadInput where none can.
    """
    reasons = []
    for package in PACKAGES:
        try:
            return import_module(f"{package}.interpreter").Interpreter
        except (
            ImportError,
            AttributeError,
        ) as error:  # built for another numpy, it fails with either
            reasons.append(first_line(error))
    raise BadInput(
        f"LiteRT is not installed ({'; '.join(reasons)}), backend litert, pip install"
        " 'nnstretch[litert]' or tflite-runtime"
    )


def _tensor_info(details: Mapping[str, Any]) -> TensorInfo:
    scale, zero_point = details["quantization"]
    return TensorInfo(
        tuple(int(size) for size in details["shape"]),
        np.dtype(details["dtype"]).name,
        float(scale),
        int(zero_point),
    )


@contextlib.contextmanager
def _silence_greeting() -> Iterator[None]:
    """Silence the library's greeting on the error stream, which comes from below Python when it
    makes its first delegate.
    """
    with SILENCE:  # another thread would keep, and restore, the silence
        try:
            kept = os.dup(2)
        except OSError:  # closed: nobody hears it
            yield
            return
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, 2)
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            os.close(nowhere)
