"""Kinds of operators that share a rule of slices, and the types of rules."""

from __future__ import annotations

from collections.abc import Mapping

from nnstretch.chip.boxes import Box
from nnstretch.graph import TensorSpec
from nnstretch.kernel import ACTIVATIONS

Specs = Mapping[str, TensorSpec]
Reads = dict[str, Box]
_ELEMENTWISE = """
    add sub rsub mul div maximum minimum where abs exp log sin cos tanh erf square floor masked_fill
    eq ne lt le gt ge logical_not logical_and logical_or clone to _to_copy type_as contiguous
    dropout feature_dropout alpha_dropout detach alias identity lift_fresh_copy
"""
ELEMENTWISE = frozenset(ACTIVATIONS) | frozenset(_ELEMENTWISE.split())
_RESHAPES = "view _unsafe_view reshape view_as reshape_as flatten unflatten squeeze unsqueeze"
RESHAPES = frozenset(_RESHAPES.split())
POOLS = frozenset({"max_pool2d", "avg_pool2d", "max_pool1d", "avg_pool1d"})
TRANSPOSES = frozenset({"permute", "transpose", "t", "numpy_T", "mT", "swapaxes"})
REDUCTIONS = frozenset({"mean", "sum", "amax", "amin", "linalg_vector_norm"})
SOFTMAXES = frozenset({"softmax", "_softmax", "_safe_softmax", "log_softmax"})
"""Of them, the safe one gives 0 for a row of which every number is minus infinity."""
