"""litData's `index.json`, read and judged before litData reads it.

litData chooses by this file how bytes become objects: it may name pickle, which runs code, or a
module to import. Only the one form that `shard_writer` makes is let through.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from nnstretch.errors import BadInput, BrokenFile, UnknownName
from nnstretch.files.decode import decode, tolerant
from nnstretch.files.json_text import read_json
from nnstretch.files.limits import Length, OneOf, Only, Range

INDEX_FILE = "index.json"
LEAF_SPEC: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
PAIR_SPEC = [
    1,
    {"type": "builtins.tuple", "context": "null", "children_spec": [LEAF_SPEC, LEAF_SPEC]},
]
"""How litData writes that an image is a tuple of two plain values."""
UNREAD_KEYS = ("chunk_bytes", "chunk_size")
"""Of the configuration: how the writer cut its chunks."""
CHUNK_NAME = re.compile(r"chunk-\d+-\d+\.bin")


def is_pair_spec(text: str) -> bool:
    """Return whether a text says that an image is a tuple of two plain values."""
    try:
        return bool(json.loads(text) == PAIR_SPEC)
    except (ValueError, RecursionError):
        return False


@dataclass(frozen=True, slots=True)
class ShardConfig:
    """The configuration that is read; any other may run code."""

    data_format: Annotated[
        tuple[str, ...], Only(lambda kinds: kinds == ("bytes", "int"), "['bytes', 'int']")
    ]
    item_loader: Annotated[str, OneOf(("PyTreeLoader",))]
    types: Annotated[str, OneOf(("json",))]
    data_spec: Annotated[str, Only(is_pair_spec, "a pair of an image and its class")]


@tolerant
@dataclass(frozen=True, slots=True)
class ShardEntry:
    """What is read of a shard's entry; other versions of litData may write more."""

    filename: Annotated[str, Only(CHUNK_NAME.fullmatch, "a name such as chunk-0-0.bin")]
    chunk_size: Annotated[int, Range(1)]
    """Images in it."""
    chunk_bytes: Annotated[int, Range(0)]
    dim: None = None


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """What is read of an index."""

    config: ShardConfig
    chunks: Annotated[tuple[ShardEntry, ...], Length(1, 1 << 20)]


def images_per_chunk(folder: Path) -> tuple[int, ...]:
    """Return how many images each shard of a folder holds.

    Raises BadInput where there is none; BrokenFile where its index is not ours or not true.
    """
    path = folder / INDEX_FILE
    try:
        data = read_json(path)
    except UnknownName as error:
        why = error if path.exists() else f"it has no {INDEX_FILE}"
        raise BadInput(f"no shards, {folder}, {why}") from None
    try:
        index: ShardIndex = decode(ShardIndex, without_unread(data), "index")
    except ValueError as error:
        raise BrokenFile(f"{path}, {error}") from None
    for entry in index.chunks:
        check_file(path, entry)
    return tuple(entry.chunk_size for entry in index.chunks)


def without_unread(data: Any) -> Any:
    """Return an index without what is blank in its configuration or not read."""
    if not isinstance(data, dict):
        return data
    data = {key: data[key] for key in ("config", "chunks") if key in data}
    config = data.get("config")
    if isinstance(config, dict):
        items = config.items()
        data["config"] = {k: v for k, v in items if v is not None and k not in UNREAD_KEYS}
    return data


def check_file(index: Path, entry: ShardEntry) -> None:
    """Raise BrokenFile unless a shard is there and as long as the index says."""
    file = index.parent / entry.filename
    if not file.is_file():
        raise BrokenFile(f"shard missing, {file}, {index} lists it")
    if (size_bytes := file.stat().st_size) != entry.chunk_bytes:
        raise BrokenFile(f"shard of {size_bytes} bytes, {file}, {index} says {entry.chunk_bytes}")
