"""A bundle: exported sub-graphs, and the manifest that says how they hang together.

One `.nns` file is a zip: `manifest.json` and one file per sub-graph. Nothing in it is ever
unpickled, and every file's sha256 is checked before a byte of it is used.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from nnstretch.bundle.archive import MANIFEST, digest, open_sealed, read_member, write_sealed
from nnstretch.bundle.manifest import FORMAT, READABLE_FORMATS, Manifest, all_subgraphs
from nnstretch.bundle.validate import check_manifest
from nnstretch.errors import BrokenFile
from nnstretch.files.atomic import atomic_write
from nnstretch.files.decode import decode, require_format
from nnstretch.files.json_text import parse_json
from nnstretch.files.read import MOST_MODEL_BYTES, as_path, check_file

MAX_MANIFEST_BYTES = 16 << 20
OPTIONAL_KEYS = ("alternatives", "pipeline", "processor_kinds", "image_task")
"""Of a manifest: not written where they hold nothing."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """A manifest and the bytes it speaks of, all in memory and checked."""

    manifest: Manifest
    files: Mapping[str, bytes]
    """By `Subgraph.file`."""
    name: str = "bundle"
    """Where it was read from, for messages."""


def write_bundle(path: Path, manifest: Manifest, files: Mapping[str, bytes]) -> None:
    """Write one `.nns`; equal contents make equal files.

    Raises BrokenFile when the manifest or the files could not be read back.
    """
    try:
        items = asdict(manifest).items()
        content = {key: value for key, value in items if value or key not in OPTIONAL_KEYS}
        text = json.dumps(content, indent=1, allow_nan=False).encode()
        check_manifest_size(len(text))
        check_manifest(decode_manifest(text))
        _check_contents(manifest, files)
    except (ValueError, TypeError) as error:
        raise BrokenFile(f"cannot write bundle {path}, {error}") from error
    names = dict.fromkeys(sub.file for sub in all_subgraphs(manifest))
    members = {MANIFEST: text} | {name: files[name] for name in names}
    with atomic_write(path) as aside:
        write_sealed(aside, members)


def _check_contents(manifest: Manifest, files: Mapping[str, bytes]) -> None:
    promised = {sub.file: sub for sub in all_subgraphs(manifest)}
    if lost := promised.keys() ^ files.keys():
        raise ValueError(f"member {min(lost)}, not both promised and given")
    for name, sub in promised.items():
        if (len(files[name]), digest(files[name])) != (sub.size_bytes, sub.sha256):
            raise ValueError(
                f"member {name}, {len(files[name])} bytes that differ from the manifest's size or"
                " sha256"
            )


def read_bundle(path: Path | str) -> Bundle:
    """Read and check a `.nns`.

    Raises UnknownName when there is no such file; BrokenFile when it is damaged or forged.
    """
    path = as_path(path, "bundle")
    check_file(path, "bundle", MOST_MODEL_BYTES)
    try:
        with open_sealed(path) as archive:
            return _read(archive, str(path))
    except (ValueError, OSError) as error:
        raise BrokenFile(f"broken bundle {path}, {error}") from error


def _read(archive: zipfile.ZipFile, name: str) -> Bundle:
    entry = archive.NameToInfo.get(MANIFEST)
    if entry is None:
        raise ValueError(f"member {MANIFEST}, it is missing")
    check_manifest_size(entry.file_size)
    manifest = decode_manifest(archive.read(entry))
    check_manifest(manifest)
    promised = {sub.file: sub for sub in all_subgraphs(manifest)}
    if extra := sorted(set(archive.namelist()) - promised.keys() - {MANIFEST}):
        raise ValueError(f"member {extra[0]}, the manifest does not know it")
    files: dict[str, bytes] = {}
    for file, sub in promised.items():
        files[file] = read_member(archive, file, sub.size_bytes, sub.sha256)
    return Bundle(manifest, files, name)


def check_manifest_size(size_bytes: int) -> None:
    """Raise ValueError for a manifest that is longer than any that is read."""
    if size_bytes > MAX_MANIFEST_BYTES:
        raise ValueError(f"member {MANIFEST}, {size_bytes} bytes, limit {MAX_MANIFEST_BYTES}")


def decode_manifest(text: bytes) -> Manifest:
    """Decode a manifest of any readable format. Raises ValueError for anything else."""
    try:
        value = parse_json(text)
    except ValueError as error:
        raise ValueError(f"member {MANIFEST}, not JSON ({error})") from error
    try:
        format_ = require_format(value, READABLE_FORMATS)
    except ValueError as error:
        raise ValueError(f"member {MANIFEST}, {error}") from None
    if format_ == 1 and "processor_kinds" in value:
        raise ValueError(f"member {MANIFEST}, unknown key 'processor_kinds' in format 1")
    manifest: Manifest = decode(Manifest, value, f"member {MANIFEST}")
    return replace(manifest, format=FORMAT)
