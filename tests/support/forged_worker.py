"""Load and run forged copies of a bundle: a process of its own, since native code may crash.

`python -m support.forged_worker BUNDLE BACKEND FIRST COUNT` says the number of each copy before it
is loaded, then `refused: WHY` or `ran`. What else it prints, or how it dies, is a fault.
"""

from __future__ import annotations

import random
import struct
import sys
from dataclasses import replace
from pathlib import Path

from nnstretch.bundle.archive import digest
from nnstretch.bundle.bundle import Bundle, read_bundle, write_bundle
from nnstretch.errors import NnstretchError
from nnstretch.run.loaded_network import LoadedNetwork

EXTREMES = (0, 1, 2, 3, 5, 127, 128, 255, 256, 65535, 2**31 - 1, 2**31, 2**32 - 1)


def mutate(data: bytes, draw: random.Random) -> bytes:
    """Return a file cut, with bytes or numbers changed, or with a piece moved or repeated."""
    kind = draw.choice(["bits", "bytes", "numbers", "cut", "piece", "extend"])
    changed = bytearray(data)
    if kind == "cut":
        return data[: draw.randrange(len(data))]
    if kind == "extend":
        return data + data[: draw.randrange(len(data))]
    for _ in range(draw.randint(1, 6)):
        at = draw.randrange(len(data))
        if kind == "bits":
            changed[at] ^= 1 << draw.randrange(8)
        elif kind == "bytes":
            changed[at] = draw.randrange(256)
        elif kind == "numbers":
            at -= at % 4
            changed[at : at + 4] = struct.pack("<I", draw.choice(EXTREMES))
        else:
            source, size = draw.randrange(len(data)), draw.randint(1, 40)
            changed[at : at + size] = data[source : source + size]
    return bytes(changed)


def forge(bundle: Bundle, seed: int) -> Bundle:
    """Return a bundle with one file changed, or two exchanged, and a manifest that fits."""
    draw = random.Random(seed)
    files = dict(bundle.files)
    names = sorted(files)
    name = draw.choice(names)
    if len(names) > 1 and draw.random() < 0.05:
        another = draw.choice(names)
        files[name], files[another] = files[another], files[name]
    else:
        files[name] = mutate(files[name], draw)
    subgraphs = []
    for sub in bundle.manifest.subgraphs:
        data = files[sub.file]
        subgraphs.append(replace(sub, sha256=digest(data), size_bytes=len(data)))
    manifest = replace(bundle.manifest, subgraphs=tuple(subgraphs))
    return Bundle(manifest, files, bundle.name)


def attempt(bundle: Bundle, backend: str, folder: Path) -> str:
    """Write, read, load and run a bundle; return what came of it."""
    path = folder / "forged.nns"
    write_bundle(path, bundle.manifest, bundle.files)
    try:
        network = LoadedNetwork(read_bundle(path), backend)
        values = network.inputs(network.random_inputs(0))
        network.outputs(network.all_tensors(values))
        if backend in ("onnxruntime", "litert"):
            network.bound_and_filled(values)
    except NnstretchError as error:
        text = str(error)
        if "\n" in text or not text.startswith(f"broken bundle {path}, member "):
            return f"odd refusal: {text}"
        return f"refused: {text[:120]}"
    return "ran"


def main(path: Path, backend: str, first: int, count: int) -> None:
    bundle = read_bundle(path)
    for seed in range(first, first + count):
        print(seed, end=" ", flush=True)
        print(attempt(forge(bundle, seed), backend, path.parent), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
