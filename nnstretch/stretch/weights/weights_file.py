"""Weights in safetensors, which cannot run code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from nnstretch.bundle.image_task import ImageTask, read_task, task_text
from nnstretch.capture.model_spec import BUILT_BY_SEED
from nnstretch.errors import BadInput, BrokenFile, name_first
from nnstretch.files.atomic import atomic_write
from nnstretch.files.checked import checked
from nnstretch.files.read import as_path
from nnstretch.files.safetensors_header import check_header, with_sorted_texts

SEED_TEXT = re.compile(r"-?[0-9]{1,20}")
SEEDS = range(-(2**63), 2**64)
"""Those that PyTorch's generator takes."""
IMAGE_TASK = "image_task"
"""Text in the header that says how the network sees images."""


def save_weights(module: nn.Module, path: Path, task: ImageTask | None = None) -> None:
    """Write a module's weights as safetensors.

    The header says how it sees images, and by which seed `load_model` built it.
    """
    texts = {IMAGE_TASK: task_text(task)} if task else {}
    if (seed := getattr(module, BUILT_BY_SEED, None)) is not None:
        texts[BUILT_BY_SEED] = str(seed)
    write_tensors(module.state_dict(), path, texts or None)


def read_image_task(path: str | Path) -> ImageTask | None:
    """Return how the network of a weights file sees images; None where it does not say.

    Raises BrokenFile where it says something else, UnknownName for a missing file.
    """
    texts = header_texts(path)
    if IMAGE_TASK not in texts:
        return None
    try:
        return read_task(texts[IMAGE_TASK])
    except ValueError as error:
        raise BrokenFile(f"weights {path}, {error}") from None


def header_texts(path: str | Path) -> dict[str, str]:
    """Return the texts in the header of a weights file. Raises UnknownName or BrokenFile."""
    with open_weights(as_path(path, "weights")) as file:
        return file.metadata() or {}


def seed_of_weights(path: str | Path | None, default: int = 0) -> int:
    """Return the seed by which the network of a weights file was built: `load_model`'s.

    A factory may draw what no weights file keeps: a random projection, a mask. It is `default`
    without a file, and where the file does not say. Raises BrokenFile where it says something else,
    UnknownName for a missing file.
    """
    text = None if path is None else header_texts(path).get(BUILT_BY_SEED)
    if text is None:
        return default
    if not SEED_TEXT.fullmatch(text) or int(text) not in SEEDS:
        raise BrokenFile(f"weights {path}, {BUILT_BY_SEED} is {text!r:.40}, needed is a seed")
    return int(text)


def scored_classes(path: str | Path) -> tuple[str, ...]:
    """Return the classes that a weights file names, in the order of the scores; none if it names
    none.
    """
    task = read_image_task(path)
    return () if task is None else task.classes


@checked
def load_weights(module: nn.Module, path: str | Path) -> None:
    """Load a module's weights from a file. Raises BadInput, and changes nothing, on a mismatch.

    What no file keeps stays as it is: build the network by the file's seed (`seed_of_weights`).
    """
    weights, _ = read_tensors(as_path(path, "weights"))
    if reason := first_mismatch(module, weights):
        raise BadInput(f"weights {path} do not fit the network, {reason}")
    if reason := first_unusable(module, weights):
        raise BadInput(f"weights {path} cannot be used, {reason}, take those of another save")
    module.load_state_dict(weights)


def first_mismatch(module: nn.Module, weights: Mapping[str, Tensor]) -> str | None:
    """Return in words the first key that does not fit the network; None where all fit."""
    state = module.state_dict()
    missing = [key for key in state if key not in weights]
    unexpected = [key for key in weights if key not in state]
    if missing:
        said = f"{missing[0]} is missing{more_keys(missing, 'are', len(state))}"
        if unexpected:
            said += f", of another network: it has {name_first(unexpected)}"
        return said
    if unexpected:
        return f"{unexpected[0]} is unexpected{more_keys(unexpected, 'are', len(weights))}"
    misshaped = [key for key in state if state[key].shape != weights[key].shape]
    if misshaped:
        key = misshaped[0]
        return (
            f"{key} has shape {format_shape(weights[key])}, the network wants"
            f" {format_shape(state[key])}{more_keys(misshaped, 'do')}"
        )
    if cast := [key for key in state if number_kind(state[key]) != number_kind(weights[key])]:
        key = cast[0]
        return (
            f"{key} holds {number_kind(weights[key])} numbers, the network wants"
            f" {number_kind(state[key])}{more_keys(cast, 'do')}"
        )
    return None


def more_keys(keys: Sequence[str], verb: str, total: int | None = None) -> str:
    """Return of how many keys holds what was said of the first: `, as are 2 more of 26`."""
    of_all = "" if total is None else f" of {total}"
    if len(keys) > 1:
        return f", as {verb} {len(keys) - 1} more{of_all}"
    return of_all and f", 1{of_all}"


def number_kind(tensor: Tensor) -> str:
    """Return the kind of a tensor's numbers, among which a cast loses precision at most."""
    if tensor.is_complex():
        return "complex"
    return "floating-point" if tensor.is_floating_point() else "whole"


def first_unusable(module: nn.Module, weights: Mapping[str, Tensor]) -> str | None:
    """Return in words the first weight that no network computes with, as it would hold it.

    None without any. Buffers and frozen weights may be infinite, as masks are, but are numbers.
    """
    trained = {
        key
        for key, weight in module.named_parameters(remove_duplicate=False)
        if weight.requires_grad
    }
    for key, value in module.state_dict().items():
        cast = weights[key].to(value.dtype)
        if bool(cast.isnan().any()):
            return f"{key} holds values that are no numbers (NaN)"
        if key in trained and not bool(cast.isfinite().all()):
            return f"{key} holds values that are infinite as {str(value.dtype)[6:]}"
        if key.endswith("running_var") and bool((cast < 0).any()):
            return f"{key} holds values below 0, which no variance is"
    return None


def format_shape(tensor: Tensor) -> str:
    """Return a tensor's shape as text."""
    return "x".join(map(str, tensor.shape)) or "scalar"


def write_tensors(
    tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str] | None = None
) -> None:
    """Write tensors as safetensors. Raises BadInput when the file cannot be written."""
    with atomic_write(path) as aside:
        aside.write_bytes(pack_tensors(tensors, metadata))


def pack_tensors(tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Return tensors as the bytes of a safetensors file."""
    # The library's own writing to a file makes another one beside it, which a kill would leave.
    # It wants every tensor contiguous, and none to share memory.
    copies: dict[str, Tensor] = {}
    for key, value in tensors.items():
        copies[key] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
    return with_sorted_texts(save(copies, metadata))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return a file's tensors and the texts in its header.

    Raises UnknownName for a missing file, BrokenFile for one that is no safetensors file.
    """
    with open_weights(path) as file:
        return {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}  # noqa: SIM118


@contextmanager
def open_weights(path: Path) -> Iterator[safe_open]:
    """Open a weights file whose header is sound. Raises UnknownName or BrokenFile."""
    check_header(path)
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except SafetensorError as error:
        raise BrokenFile(f"weights {path}, not a safetensors file, {error}") from None
