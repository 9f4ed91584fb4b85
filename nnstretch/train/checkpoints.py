"""Weights and training states in safetensors, which cannot run code.

The state of an interrupted training is its tensors, with everything around them as JSON in the
header. Lightning's own checkpoints are pickles and are never read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins.io.checkpoint_io import CheckpointIO
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from nnstretch.errors import BadInput, BrokenFile
from nnstretch.files.atomic import atomic_write
from nnstretch.files.read import as_path
from nnstretch.files.safetensors_header import check_header
from nnstretch.train.data.dataset import arrays_digest


def save_weights(module: nn.Module, path: Path) -> None:
    """Write a module's weights as safetensors."""
    write_tensors(module.state_dict(), path)


def load_weights(module: nn.Module, path: str | Path) -> None:
    """Load a module's weights from a file. Raises BadInput, and changes nothing, on a mismatch."""
    weights, _ = read_tensors(as_path(path, "weights"))
    if reason := first_mismatch(module, weights):
        raise BadInput(f"weights {path} do not fit the network, {reason}")
    module.load_state_dict(weights)


def first_mismatch(module: nn.Module, weights: Mapping[str, Tensor]) -> str | None:
    """Return in words the first key that does not fit the network; None where all fit."""
    state = module.state_dict()
    missing = [key for key in state if key not in weights]
    if missing:
        return f"{missing[0]} is missing, as are {len(missing) - 1} more of {len(state)}"
    unexpected = [key for key in weights if key not in state]
    if unexpected:
        return f"{unexpected[0]} is unexpected, as are {len(unexpected) - 1} more of {len(weights)}"
    misshaped = [key for key in state if state[key].shape != weights[key].shape]
    if misshaped:
        key = misshaped[0]
        return (
            f"{key} has shape {format_shape(weights[key])}, the network wants"
            f" {format_shape(state[key])}, as do {len(misshaped) - 1} more"
        )
    return None


def format_shape(tensor: Tensor) -> str:
    """Return a tensor's shape as text."""
    return "x".join(map(str, tensor.shape)) or "scalar"


def weights_digest(module: nn.Module) -> str:
    """Return the SHA-256 of a module's weights."""
    tensors = [tensor for _, tensor in sorted(module.state_dict().items())]
    flat = [tensor.detach().cpu().contiguous().flatten() for tensor in tensors]
    return arrays_digest(*(tensor.view(torch.uint8).numpy() for tensor in flat))


def write_tensors(
    tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str] | None = None
) -> None:
    """Write tensors as safetensors. Raises BadInput when the file cannot be written."""
    # safetensors wants every tensor contiguous, and none to share memory.
    copies: dict[str, Tensor] = {}
    for key, value in tensors.items():
        copies[key] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
    with atomic_write(path) as aside:
        try:
            save_file(copies, aside, metadata)
        except SafetensorError as error:
            raise BadInput(f"cannot write {path}, {error}, nothing is changed") from None


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return a file's tensors and the texts in its header.

    Raises UnknownName for a missing file, BrokenFile for one that is no safetensors file.
    """
    check_header(path)
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except SafetensorError as error:
        raise BrokenFile(f"weights {path}, not a safetensors file, {error}") from None


STATE_KEYS = (
    "state_dict",
    "loops",
    "callbacks",
    "optimizer_states",
    "lr_schedulers",
    "pytorch-lightning_version",
)
"""What a state must hold: without it Lightning would go on with something else."""


class SafeCheckpoint(CheckpointIO):
    """Reader and writer of Lightning's training states without pickle."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Write a training state."""
        tensors: dict[str, Tensor] = {}
        text = json.dumps(pack_state(checkpoint, tensors))
        write_tensors(tensors, Path(path), {"state": text})

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a training state. Raises BrokenFile when it is damaged."""
        tensors, metadata = read_tensors(Path(path))
        try:
            state = unpack_state(json.loads(metadata["state"]), tensors)
        except (KeyError, ValueError, TypeError, RecursionError) as error:
            raise BrokenFile(
                f"training state {path}, not one of an interrupted training, {type(error).__name__}"
                f" {error}"
            ) from None
        for key in STATE_KEYS:
            if not isinstance(state, dict) or not state.get(key):
                raise BrokenFile(
                    f"training state {path}, not one of an interrupted training, it holds no {key}"
                )
        return state

    def remove_checkpoint(self, path: Any) -> None:
        """Delete a training state."""
        Path(path).unlink(missing_ok=True)


def pack_state(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return `value` as JSON, its tensors moved into `tensors`. Raises TypeError for objects."""
    if isinstance(value, Tensor):
        key = f"t{len(tensors)}"
        tensors[key] = value
        return {"tensor": key}
    if isinstance(value, dict):
        return {"dict": [[key, pack_state(item, tensors)] for key, item in value.items()]}
    if isinstance(value, (tuple, list)):
        items = [pack_state(item, tensors) for item in value]
        return items if isinstance(value, list) else {"tuple": items}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(
        f"cannot save a {type(value).__name__} of the training state, only tensors, containers,"
        " numbers and text"
    )


def unpack_state(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the value that `pack_state` has packed."""
    if isinstance(value, list):
        return [unpack_state(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]]
    if "tuple" in value:
        return tuple(unpack_state(item, tensors) for item in value["tuple"])
    return {key: unpack_state(item, tensors) for key, item in value["dict"]}
