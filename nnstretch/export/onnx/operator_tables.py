"""Tables of operators that PyTorch's exporter builds anew at each export, kept between exports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any


@contextmanager
def keep_operator_tables() -> Iterator[None]:
    """Share the table of ONNX forms between exports, and read composite operators once in each.

    Both take most of the time of a small export. Their names are private to PyTorch: where they
    have moved, nothing is kept, and an export takes longer.
    """
    try:
        from torch._export import utils
        from torch.onnx._internal.exporter._registration import ONNXRegistry

        descriptor = vars(ONNXRegistry)["from_torchlib"]
        read_composites = utils._materialize_cpp_cia_ops
    except (ImportError, AttributeError, KeyError):
        yield
        return
    registry: Any = staticmethod(partial(shared_registry, ONNXRegistry.from_torchlib))
    try:
        ONNXRegistry.from_torchlib = registry  # type: ignore[method-assign]
        utils._materialize_cpp_cia_ops = cache(read_composites)
        yield
    finally:
        ONNXRegistry.from_torchlib = descriptor  # type: ignore[method-assign]
        utils._materialize_cpp_cia_ops = read_composites


@cache
def shared_registry(build_registry: Callable[..., Any], *opset: Any, **named_opset: Any) -> Any:
    """Return the table of ONNX forms for an opset, which an export reads and does not change."""
    return build_registry(*opset, **named_opset)
