"""Training states in safetensors, which cannot run code.

The state of an interrupted training is its tensors, with everything around them as JSON in the
header. Lightning's own checkpoints are pickles and are never read. A buffer that no file keeps must
not change, and where a training goes on, precision, teacher and the network's code are as before.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins.io.checkpoint_io import CheckpointIO
from torch import Tensor, nn

from nnstretch.capture.exported_program import eval_mode
from nnstretch.errors import BadInput, BrokenFile
from nnstretch.stretch.weights.weights_file import pack_tensors, read_tensors
from nnstretch.train.data.dataset import arrays_digest
from nnstretch.train.data.sampling_order import (
    fork_library_generators,
    seed_library_generators,
    seeded_generator,
)
from nnstretch.train.losses import class_scores


def weights_digest(module: nn.Module) -> str:
    """Return the SHA-256 of a module's weights."""
    tensors = [tensor for _, tensor in sorted(module.state_dict().items())]
    flat = [tensor.detach().cpu().contiguous().flatten() for tensor in tensors]
    return arrays_digest(*(tensor.view(torch.uint8).numpy() for tensor in flat))


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
        """Write a training state; to see no half of it is left to the caller."""
        tensors: dict[str, Tensor] = {}
        text = json.dumps(pack_state(checkpoint, tensors))
        Path(path).write_bytes(pack_tensors(tensors, {"state": text}))

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


RELATIVE, ABSOLUTE = 1e-4, 1e-6
"""Differences of a buffer that was computed anew, perhaps on another device."""


def unsaved_buffers(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield name and value of every buffer that is registered with persistent=False."""
    for prefix, module in network.named_modules():
        for name in sorted(module._non_persistent_buffers_set):
            buffer = module._buffers.get(name)
            if buffer is not None:
                yield f"{prefix}.{name}".removeprefix("."), buffer


class UnsavedBuffers:
    """What unsaved buffers of a network held when they were first seen.

    One that is rebuilt for images of another size has another shape, and is compared with itself.
    """

    def __init__(self) -> None:
        self._first: dict[tuple[str, torch.Size, torch.dtype], Tensor] = {}

    def refuse_changed(self, network: nn.Module) -> None:
        """Note buffers not seen before, and compare the rest.

        Raises BadInput for one whose values have changed.
        """
        for name, buffer in unsaved_buffers(network):
            now = buffer.detach().cpu()
            key = (name, now.shape, now.dtype)
            if key not in self._first:
                self._first[key] = now.clone()
            elif not is_unchanged(self._first[key], now):
                raise BadInput(
                    f"buffer {name} changes in training, it is registered with persistent=False,"
                    " which weights and saved states leave out, register it with persistent=True"
                )


def is_unchanged(before: Tensor, now: Tensor) -> bool:
    """Return whether two tensors of a kind hold the same values, but for rounding."""
    if torch.equal(before, now):
        return True
    return now.is_floating_point() and torch.allclose(
        before, now, rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True
    )


PROBE_SEED = 1
SCORES_DIFFER = 0.05
"""Difference of scores, over the largest of them, that no other device or precision explains."""


def probe_scores(network: nn.Module, side_px: int) -> list[float]:
    """Return the scores that a network gives one drawn image in evaluation mode.

    No generator of the caller moves.
    """
    parameter = next(network.parameters())
    image = torch.randn(1, 3, side_px, side_px, generator=seeded_generator(PROBE_SEED))
    with (
        eval_mode(network),
        torch.no_grad(),
        torch.random.fork_rng(devices=[]),
        fork_library_generators(),
    ):
        torch.default_generator.manual_seed(PROBE_SEED)
        seed_library_generators(PROBE_SEED)
        scores = class_scores(network(image.to(parameter.device, parameter.dtype)))
    return [float(score) for score in scores.flatten().float().cpu()]


def check_same_scores(before: Sequence[float], now: Sequence[float]) -> None:
    """Check what a network with saved weights gives a drawn image. Raises BadInput.

    With the same weights only other code gives other scores. What is not finite tells nothing.
    """
    then, scores = torch.tensor(before), torch.tensor(now)
    if not (torch.isfinite(then).all() and torch.isfinite(scores).all()):
        return
    is_like = then.shape == scores.shape
    if is_like and (then - scores).abs().max() <= SCORES_DIFFER * then.abs().max():
        return
    raise BadInput(
        "cannot resume, with the saved weights the network gives an image other scores than before,"
        " its code has changed, go on with the code of before or begin anew in another folder"
    )


def saved_scores(state: Mapping[str, Any]) -> list[float]:
    """Return the scores that a state was saved with; none of one that has none.

    Raises BrokenFile where they are no numbers.
    """
    scores = state.get("scores", [])
    if not (isinstance(scores, list) and all(type(score) is float for score in scores)):
        raise BrokenFile("training state, its scores of an image are no numbers, it is damaged")
    return scores


def check_same_precision(before: str | None, now: str, asked: str) -> None:
    """Check the precision of a saved state. Raises BrokenFile or BadInput."""
    if before is None:
        raise BrokenFile(
            "training state of another version, it does not name the precision it began in, begin"
            " anew in another folder"
        )
    if before != now:
        raise BadInput(
            f"cannot resume, it began in {before}, trainer.precision {asked} is {now} here, ask for"
            f" {before}"
        )


def check_same_teacher(state: Mapping[str, Any], taught_by: str, compared: str) -> None:
    """Check that a saved state was distilled from the same weights. Raises BadInput."""
    if state.get("taught_by", taught_by) != taught_by:
        raise BadInput(
            "cannot resume, the weights to distil from are others than before, give the same"
            " --teacher or --weights"
        )
    if state.get("compared", compared) != compared:
        raise BadInput(
            "cannot resume, features would be compared with other channels of the original than"
            " before, give the same --weights"
        )
