"""Pack a folder of images into shards for `data.name: shards`.

`python scripts/make_shards.py FOLDER --out SHARDS`.

FOLDER is as `data.name: folder` takes it: train and val of class folders, or class folders of which
a share is held out.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from nnstretch.errors import NnstretchError, one_line


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
    return parser.parse_args()


def show(done: int, total: int) -> None:
    print(
        f"\r{done} of {total} images",
        end="\n" if done == total else "",
        file=sys.stderr,
        flush=True,
    )


def main() -> int:
    given = arguments()
    from nnstretch.train.data.image_folder import open_folder
    from nnstretch.train.data.shard_writer import write_dataset

    try:
        dataset = open_folder(given.folder, given.held_out, given.split_seed)
        write_dataset(dataset, given.out, round(given.chunk_mb * 1_000_000), given.workers, show)
    except NnstretchError as error:
        print(f"make_shards: {one_line(error)}", file=sys.stderr)
        return 1
    print(
        f"{given.out}: {len(dataset.train)} images to train on, {len(dataset.held)} held out,"
        f" {len(dataset.classes)} classes"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
