"""Images as bytes, and what data sets refuse."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from nnstretch.errors import BadInput
from nnstretch.train.data.dataset import Images, UnreadableImage
from nnstretch.train.data.image_folder import ImageFiles, open_folder


def in_bytes(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


@contextmanager
def one_line(told: str) -> Iterator[None]:
    """What is in it may be refused as Unreadable, in one line that tells that much."""
    problem = ""
    try:
        yield
    except UnreadableImage as error:
        problem = str(error)
    assert not problem or (told in problem and "\n" not in problem)


def names(images: Images) -> set[str]:
    assert isinstance(images, ImageFiles)
    return {str(images.file_path(index)) for index in range(len(images))}


def refusal(root: Path, held_out: float = 0.25) -> str:
    with pytest.raises(BadInput) as caught:
        open_folder(root, held_out, 0)
    assert "\n" not in str(caught.value)
    return str(caught.value)
