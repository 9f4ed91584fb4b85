"""Attention in the form that PyTorch's ONNX exporter takes: four dimensions, no more, no fewer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

DIMENSIONS = 4
"""Batch, heads, tokens, width."""
ATTENTION = (
    F.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention.default,
)
"""The function that modules call, and the operator in sections of a captured network."""


class FourDimensionalAttention(TorchFunctionMode):
    """Mode in which attention over windows or without heads is computed in four dimensions."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of PyTorch, attention with its leading dimensions folded."""
        named = dict(kwargs or {})
        if func not in ATTENTION or len(args) < 3:
            return func(*args, **named)
        query, key, value = args[:3]
        mask = args[3] if len(args) > 3 else named.get("attn_mask")
        lead = query.shape[:-2]
        same = lead == key.shape[:-2] == value.shape[:-2]
        if query.dim() == DIMENSIONS or not same or (mask is not None and mask.dim() > 2):
            return func(*args, **named)
        result = func(*(fold(tensor) for tensor in (query, key, value)), *args[3:], **named)
        return result.reshape(*lead, *result.shape[-2:])


def fold(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with all but its last three dimensions as one batch, heads added if none."""
    tokens, width = tensor.shape[-2:]
    heads = tensor.shape[-3] if tensor.dim() > DIMENSIONS - 1 else 1
    return tensor.reshape(-1, heads, tokens, width)
