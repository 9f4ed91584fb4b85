"""PyTorch module -> .tflite as litert-torch deploys it.

Float32, or int8 in weights, activations, inputs and outputs.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

from nnstretch.export.litert.convert import to_int8, to_litert

CALIBRATION_INPUTS = 2
"""Random normal ones: ranges change what is computed, not how long it takes."""


def to_tflite(module: nn.Module, example: torch.Tensor, dtype: str) -> bytes:
    """Convert to a file; maps enter it NHWC. Raises UnsupportedOp where a converter refuses, in one
    line.
    """
    name = type(module).__name__
    model = to_litert(module, (example,), name)
    if dtype == "float32":
        return model
    generator = torch.Generator().manual_seed(0)
    return to_int8(
        model,
        [(torch.randn(example.shape, generator=generator),) for _ in range(CALIBRATION_INPUTS)],
        name,
    )


def with_nontrivial_weights(module: nn.Module) -> nn.Module:
    """Return a copy without the ones and zeros that layers start with.

    A converter drops products and sums with them.

    A network that was trained has none, so an untrained one would look faster than it will be.
    """
    module = copy.deepcopy(module)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, values in [*module.named_parameters(), *module.named_buffers()]:
            if (
                values.is_floating_point()
                and bool((values == values.reshape(-1)[:1]).all())
                and float(values.reshape(-1)[0]) in (0.0, 1.0)
            ):
                noise = torch.rand(values.shape, generator=generator, dtype=values.dtype)
                values.copy_(
                    0.5 + noise
                    if "var" in name or float(values.reshape(-1)[0])
                    else 0.2 * (noise - 0.5)
                )
    return module
