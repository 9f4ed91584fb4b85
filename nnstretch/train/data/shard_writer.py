"""Pack images into litData's shards for `data.name: shards`.

    python -m nnstretch.train.data.shard_writer FOLDER --out SHARDS

FOLDER is as `data.name: folder` takes it: train and val of class folders, or class folders of which
a share is held out. Shards are written aside and then renamed, so a killed run leaves none.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from nnstretch.errors import BadInput, NnstretchError, one_line
from nnstretch.train.data.dataset import Dataset, Images
from nnstretch.train.data.decode import decode_image, encode_png
from nnstretch.train.data.image_folder import ImageFiles, open_folder
from nnstretch.train.data.shards import CLASSES_FILE, CLASSES_FORMAT

ShardProgress = Callable[[int, int], None]
"""Called with the number of images written, and of all."""
MIN_CHUNK_BYTES = 1024
IMAGES_PER_BLOCK = 64
"""Images read ahead of the writer, which bounds memory."""
SHUFFLE_SEED = 0
"""Images are shuffled once, so that every chunk, of which a batch needs few, holds many classes."""


def ignore_progress(done: int, total: int) -> None:
    """Show no progress."""


def write_dataset(
    dataset: Dataset,
    root: Path,
    chunk_bytes: int,
    workers: int = 1,
    progress: ShardProgress = ignore_progress,
) -> None:
    """Write a data set as a new folder `root`, which `open_shards` reads; `workers` are threads.

    Raises BadInput, or UnreadableImage that names the file.
    """
    with create_folder_atomically(Path(root)) as aside:
        write_chunks(aside / "train", dataset.train, chunk_bytes, workers, progress)
        write_chunks(aside / "val", dataset.held, chunk_bytes, workers, progress)
        facts = {
            "format": CLASSES_FORMAT,
            "classes": dataset.classes,
            "mean": dataset.mean,
            "std": dataset.std,
        }
        (aside / CLASSES_FILE).write_text(json.dumps(facts, indent=1), encoding="utf-8")


def write_chunks(
    folder: Path, images: Images, chunk_bytes: int, workers: int, progress: ShardProgress
) -> None:
    """Write one litData folder of chunks. Raises BadInput when a number is too small."""
    from litdata.streaming import Cache

    if chunk_bytes < MIN_CHUNK_BYTES or workers < 1 or not len(images):
        raise BadInput(
            f"chunks of {chunk_bytes} bytes, {workers} workers, {len(images)} images, shards,"
            f" needed are at least {MIN_CHUNK_BYTES}, 1 and 1"
        )
    order = np.random.default_rng(SHUFFLE_SEED).permutation(len(images)).tolist()
    cache = Cache(str(folder), chunk_bytes=chunk_bytes)
    with ThreadPoolExecutor(workers) as pool:
        for start in range(0, len(order), IMAGES_PER_BLOCK):
            block = order[start : start + IMAGES_PER_BLOCK]
            items = pool.map(partial(encode_item, images), block)
            for position, item in enumerate(items, start):
                cache[position] = item
            progress(start + len(block), len(order))
    cache.done()
    cache.merge()


def encode_item(images: Images, index: int) -> tuple[bytes, int]:
    """Return an image's own file if it can be decoded, or a PNG, and its class."""
    if isinstance(images, ImageFiles):
        data, label = images.read_encoded(index)
        decode_image(data, str(images.file_path(index)))
        return data, label
    image, label = images[index]
    return encode_png(image), label


@contextmanager
def create_folder_atomically(path: Path) -> Iterator[Path]:
    """Yield a folder that is renamed to `path` if the block succeeds. Raises BadInput."""
    if path.exists():
        raise BadInput(f"cannot write shards, {path}, it is there already; name a new folder")
    if not path.parent.is_dir():
        raise BadInput(f"cannot write shards, {path}, no folder {path.parent}, create it first")
    aside = None
    try:
        aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        yield aside
        aside.chmod(0o755)
        os.rename(aside, path)
    except OSError as error:
        raise BadInput(f"cannot write shards, {path}, {error.strerror or error}") from error
    finally:
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)


def arguments() -> ArgumentParser:
    """Return the parser of the command."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder to make; it must not be there yet"
    )
    parser.add_argument(
        "--chunk-mb", type=float, default=64, help="size of one shard in MB (%(default)s)"
    )
    parser.add_argument(
        "--held-out",
        type=float,
        default=0.1,
        help="share held out where FOLDER has no train and val (%(default)s)",
    )
    parser.add_argument(
        "--split-seed", type=int, default=0, help="which images that are (%(default)s)"
    )
    parser.add_argument(
        "--workers", type=int, default=2, help="threads that read and check images (%(default)s)"
    )
    return parser


def show_progress(done: int, total: int) -> None:
    """Show how many images are written, on one line of standard error."""
    end = "\n" if done == total else ""
    print(f"\r{done} of {total} images", end=end, file=sys.stderr, flush=True)


def main() -> int:
    """Pack the folder that the command line names; return the exit status."""
    args = arguments().parse_args()
    try:
        dataset = open_folder(args.folder, args.held_out, args.split_seed)
        chunk_bytes = round(args.chunk_mb * 1_000_000)
        write_dataset(dataset, args.out, chunk_bytes, args.workers, show_progress)
    except NnstretchError as error:
        print(f"nnstretch: {one_line(error)}", file=sys.stderr)
        return 1
    print(
        f"{args.out}: {len(dataset.train)} images to train on, {len(dataset.held)} held out,"
        f" {len(dataset.classes)} classes"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
