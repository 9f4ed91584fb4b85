"""Arrays that the command line names: --input and --output, each FILE.npy or NAME=FILE.npy."""

from __future__ import annotations

import argparse
import os.path
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nnstretch.cli.output_path import check_writable
from nnstretch.errors import BadInput
from nnstretch.files.read import as_path

UNNAMED = ""
"""Stands for the only input or output."""


def files_by_name(
    option: str, texts: Sequence[str], names: Sequence[str], model: str
) -> dict[str, Path]:
    """Return the file of each input or output that `texts` name, in their order.

    A file without a name is that of the only tensor, under UNNAMED. Raises BadInput for a tensor
    named twice, or not named where there are several.
    """
    files: dict[str, Path] = {}
    for text in texts:
        name, separator, file = text.partition("=")
        if separator and name not in names and "/" not in name and not os.path.exists(text):
            raise BadInput(
                f"{option} {text[:80]}, command line, {model} has no {option[2:]} {name[:40]!r} but"
                f" {', '.join(names)[:120]}"
            )
        if not separator or name not in names:
            name, file = UNNAMED, text
        if name == UNNAMED and (len(names) > 1 or len(texts) > 1):
            raise BadInput(
                f"{option} {text[:80]}, command line, {model} has {len(names)} {option[2:]}s"
                f" ({', '.join(names)[:120]}), write {option} NAME=FILE.npy for each"
            )
        if name in files:
            raise BadInput(f"{option} names {name} twice, command line, give each array once")
        files[name] = as_path(file, option)
    return files


def read_inputs(files: Mapping[str, Path], read: Callable[[Path], Any]) -> Any:
    """Return the only array as it is, or arrays by name."""
    if list(files) == [UNNAMED]:
        return read(files[UNNAMED])
    return {name: read(path) for name, path in files.items()}


def files_of(
    args: argparse.Namespace, inputs: Sequence[str], outputs: Sequence[str], model: str
) -> tuple[dict[str, Path], dict[str, Path]]:
    """Return the files of --input and of --output by the names of a network's tensors.

    Raises BadInput for a name that does not fit, and where an output or --trace cannot be written.
    """
    sources = files_by_name("--input", args.input, inputs, model)
    files = files_by_name("--output", args.output, outputs, model)
    targets = list(files.values())
    for path in (args.trace, *targets):
        check_writable(path, args.bundle, *sources.values())
    resolved = [path.resolve() for path in targets]
    if args.trace is not None and args.trace.resolve() in resolved:
        raise BadInput(f"--trace is {args.trace}, command line, it is --output, too")
    for number, path in enumerate(targets):
        if resolved[number] in resolved[:number]:
            raise BadInput(f"--output writes {path} twice, command line, name a file for each")
    return sources, files


def write_outputs(files: Mapping[str, Path], output: Any) -> None:
    """Write the outputs that have a file: the only one, or those of several by name."""
    from nnstretch.run.results.npy_files import write_npy

    for name, path in files.items():
        write_npy(path, output[name] if isinstance(output, Mapping) and name else output)
