"""Weights in safetensors, which hold tensors and text and can run nothing.

The state of an interrupted training is written the same way: tensors as tensors, everything
around them as JSON in the header. Lightning's own checkpoints are pickles and are never read.
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

from nnstretch.errors import BadInput, BrokenFile, UnknownName
from nnstretch.files.atomic import atomic_write


def save_weights(module: nn.Module, path: Path) -> None:
    """Write a module's weights as safetensors."""
    write_tensors(module.state_dict(), path)


def load_weights(module: nn.Module, path: str | Path) -> None:
    """Fill `module` from a checkpoint; every key and shape must agree, or nothing is changed.

    Raises BadInput when a key or shape differs.
    """
    weights, _ = read_tensors(Path(path))
    if reason := first_mismatch(module, weights):
        raise BadInput(f"weights {path} do not fit the network, {reason}")
    module.load_state_dict(weights)


def first_mismatch(module: nn.Module, weights: Mapping[str, Tensor]) -> str | None:
    """Return none, or the first key that is missing, unexpected or mis-shaped, and how many are
    like it.
    """
    wanted = module.state_dict()
    missing = [key for key in wanted if key not in weights]
    unexpected = [key for key in weights if key not in wanted]
    shaped = [key for key in wanted if key in weights and wanted[key].shape != weights[key].shape]
    if missing:
        return f"{missing[0]} is missing, as are {len(missing) - 1} more of {len(wanted)}"
    if unexpected:
        return f"{unexpected[0]} is unexpected, as are {len(unexpected) - 1} more of {len(weights)}"
    if shaped:
        key = shaped[0]
        return (
            f"{key} has shape {format_shape(weights[key])}, the network wants"
            f" {format_shape(wanted[key])}, as do {len(shaped) - 1} more"
        )
    return None


def format_shape(tensor: Tensor) -> str:
    """Return a tensor's shape as text."""
    return "x".join(map(str, tensor.shape)) or "scalar"


def write_tensors(
    tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str] | None = None
) -> None:
    """Write tensors, copied first: safetensors wants every tensor contiguous and in memory of its
    own.

    Raises BadInput when the file cannot be written.
    """
    copies = {
        key: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for key, value in tensors.items()
    }
    with atomic_write(path) as aside:
        try:
            save_file(copies, aside, metadata)
        except SafetensorError as error:  # a full disk, as a rule
            raise BadInput(f"cannot write {path}, {error}, nothing is changed") from None


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return tensors and the text in the header.

    Raises UnknownName when there is no such file; BrokenFile when it is no safetensors file.
    """
    if not path.is_file():
        raise UnknownName(
            f"no weights {path}, {'it is no file' if path.exists() else 'the file does not exist'}"
        )
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
"""Without which Lightning would go on with something else than was interrupted."""


class SafeCheckpoint(CheckpointIO):
    """Lightning's training state without pickle."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Write Lightning's state: tensors as safetensors, the remainder as JSON."""
        tensors: dict[str, Tensor] = {}
        text = json.dumps(pack_state(checkpoint, tensors))
        write_tensors(tensors, Path(path), {"state": text})

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read Lightning's state. Raises BrokenFile when it is damaged."""
        tensors, metadata = read_tensors(Path(path))
        try:
            state = unpack_state(json.loads(metadata["state"]), tensors)
        except (KeyError, ValueError, TypeError, RecursionError) as error:
            raise BrokenFile(
                f"training state {path}, not one of an interrupted training, {type(error).__name__}"
                f" {error}"
            ) from None
        missing = next(
            (key for key in STATE_KEYS if not isinstance(state, dict) or not state.get(key)), None
        )
        if missing is not None:
            raise BrokenFile(
                f"training state {path}, not one of an interrupted training, it holds no {missing}"
            )
        return state

    def remove_checkpoint(self, path: Any) -> None:
        """Delete a file, if it is there."""
        Path(path).unlink(missing_ok=True)


def pack_state(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return `value` as JSON; tensors move into `tensors` and leave their key behind.

    Raises TypeError when a value is more than data.
    """
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
    """Return a nested state with its tensors put back."""
    if isinstance(value, list):
        return [unpack_state(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]]
    if "tuple" in value:
        return tuple(unpack_state(item, tensors) for item in value["tuple"])
    return {key: unpack_state(item, tensors) for key, item in value["dict"]}
