"""PyTorch module -> .tflite as litert-torch deploys it: float32, or int8 in weights, activations, inputs and outputs."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from nnstretch.errors import UnsupportedOp

CALIBRATION_INPUTS = 2
"""Random normal ones: ranges change what is computed, not how long it takes."""


def to_tflite(module: nn.Module, example: torch.Tensor, dtype: str) -> bytes:
    """The file; maps enter it NHWC. Raises UnsupportedOp where a converter refuses, in one line."""
    name = type(module).__name__
    try:
        with silent(), torch.no_grad():
            model = converted(module.eval(), example)
            return model if dtype == "float32" else quantised(model)
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise UnsupportedOp(f"cannot convert {name} to LiteRT {dtype}, {reason[:200]}") from error


def converted(module: nn.Module, example: torch.Tensor) -> bytes:
    import litert_torch

    if example.dim() == 4:
        module = litert_torch.to_channel_last_io(module, args=[0])
        example = example.permute(0, 2, 3, 1).contiguous()
    return bytes(litert_torch.convert(module, (example,)).model_content())


def quantised(model: bytes) -> bytes:
    from ai_edge_litert.interpreter import Interpreter
    from ai_edge_quantizer import quantizer, recipe

    runner = Interpreter(model_content=model).get_signature_runner()
    shapes = {name: details["shape"] for name, details in runner.get_input_details().items()}
    rng = np.random.default_rng(0)
    inputs = [{n: rng.standard_normal(s, dtype=np.float32) for n, s in shapes.items()} for _ in range(CALIBRATION_INPUTS)]
    worker = quantizer.Quantizer(bytearray(model), recipe.static_wi8_ai8())
    ranges = worker.calibrate({"serving_default": inputs})
    return bytes(worker.quantize(ranges).quantized_model)


def trained(module: nn.Module) -> nn.Module:
    """A copy without the ones and zeros that layers start with: a converter drops products and sums with them.

    A network that was trained has none, so an untrained one would look faster than it will be.
    """
    module = copy.deepcopy(module)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, values in [*module.named_parameters(), *module.named_buffers()]:
            if values.is_floating_point() and bool((values == values.reshape(-1)[:1]).all()) and float(values.reshape(-1)[0]) in (0.0, 1.0):
                noise = torch.rand(values.shape, generator=generator, dtype=values.dtype)
                values.copy_(0.5 + noise if "var" in name or float(values.reshape(-1)[0]) else 0.2 * (noise - 0.5))
    return module


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Nothing on the terminal: the converters are Python, MLIR and TensorFlow Lite, each with a log of its own."""
    before = logging.root.manager.disable
    saved = [os.dup(1), os.dup(2)]
    with tempfile.TemporaryFile() as sink, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            for descriptor in (1, 2):
                os.dup2(sink.fileno(), descriptor)
            with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
                yield
        finally:
            for descriptor, kept in zip((1, 2), saved, strict=True):
                os.dup2(kept, descriptor)
                os.close(kept)
            logging.disable(before)
