"""litData's `index.json`, read and judged before litData reads it.

litData chooses by this file how bytes become objects: it may name pickle, which runs code, or a
module to import. Only the one form that `shard_writer` makes is let through.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from nnstretch.errors import BadInput, BrokenFile

INDEX_FILE = "index.json"
LEAF_SPEC: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
PAIR_SPEC = [
    1,
    {"type": "builtins.tuple", "context": "null", "children_spec": [LEAF_SPEC, LEAF_SPEC]},
]
"""How litData writes that an image is a tuple of two plain values."""
REQUIRED_CONFIG: dict[str, Any] = {
    "data_format": ["bytes", "int"],
    "item_loader": "PyTreeLoader",
    "types": "json",
}
"""What the index must say.

All else that it says must be empty, such as compression and encryption.
"""
UNCHECKED_CONFIG_KEYS = {"chunk_bytes", "chunk_size", "data_spec"}
CHUNK_NAME = re.compile(r"chunk-\d+-\d+\.bin")


def images_per_chunk(folder: Path) -> tuple[int, ...]:
    """Return how many images each shard of a folder holds.

    Raises BadInput where there is none, BrokenFile where it is not ours or its files are not as it
    says.
    """
    path = folder / INDEX_FILE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise BadInput(f"no shards, {folder}, it has no {INDEX_FILE}") from None
    except OSError as error:
        raise BadInput(f"cannot read {path}, {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise BrokenFile(f"not JSON, {path}, {type(error).__name__}") from None
    if (
        not isinstance(data, dict)
        or not isinstance(data.get("config"), dict)
        or not isinstance(data.get("chunks"), list)
    ):
        raise BrokenFile(f"not an index of shards, {path}, needed are config and chunks")
    check_config(data["config"], path)
    if not data["chunks"]:
        raise BrokenFile(f"no images, {path}, it lists no chunks")
    return tuple(check_chunk(entry, path) for entry in data["chunks"])


def check_config(config: dict[str, Any], path: Path) -> None:
    """Check the index's configuration. Raises BrokenFile when images are not plain pairs."""
    for key, needed in REQUIRED_CONFIG.items():
        if config.get(key) != needed:
            raise BrokenFile(
                f"{key} is {str(config.get(key))[:60]}, {path}, only {needed} is read: other forms"
                " may run code"
            )
    for key in sorted(config.keys() - REQUIRED_CONFIG.keys() - UNCHECKED_CONFIG_KEYS):
        if config[key] is not None:
            raise BrokenFile(f"{key} is {str(config[key])[:60]}, {path}, no such shards are read")
    try:
        plain = json.loads(config["data_spec"]) == PAIR_SPEC
    except (KeyError, TypeError, ValueError, RecursionError):
        plain = False
    if not plain:
        raise BrokenFile(
            f"data_spec is {str(config.get('data_spec'))[:60]}, {path}, only pairs of an image and"
            " its class are read"
        )


def check_chunk(entry: Any, path: Path) -> int:
    """Check one shard: its file is there and as long as the index says.

    Raises BrokenFile.
    """
    known = entry if isinstance(entry, dict) else {}
    name, images, size_bytes = (
        known.get("filename"),
        known.get("chunk_size"),
        known.get("chunk_bytes"),
    )
    if not isinstance(name, str) or not CHUNK_NAME.fullmatch(name):
        raise BrokenFile(f"chunk {str(name)[:60]}, {path}, needed is a name such as chunk-0-0.bin")
    if (
        type(images) is not int
        or images < 1
        or type(size_bytes) is not int
        or known.get("dim") is not None
    ):
        raise BrokenFile(
            f"chunk {name} of {str(images)[:20]} images and {str(size_bytes)[:20]} bytes, {path},"
            " needed are whole numbers"
        )
    file = path.parent / name
    if not file.is_file():
        raise BrokenFile(f"shard missing, {file}, {path} lists it")
    if file.stat().st_size != size_bytes:
        raise BrokenFile(f"shard of {file.stat().st_size} bytes, {file}, {path} says {size_bytes}")
    return images
