"""The header of a weights file, checked before its numbers are: safetensors 0.7 takes a key or a
type that is there twice for the last of them.

The form: 8 bytes with the length of the header, the header as JSON, the numbers without gaps
(https://github.com/huggingface/safetensors, "Format").
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated

from nnstretch.errors import BrokenFile, one_line
from nnstretch.files.decode import decode
from nnstretch.files.json_text import parse_json
from nnstretch.files.limits import Length, OneOf, Range
from nnstretch.files.read import MOST_TENSOR_BYTES, check_file

LENGTH_BYTES = 8
MOST_HEADER_BYTES = 100_000_000
"""What safetensors itself reads."""
METADATA = "__metadata__"
DTYPE_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3"), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 8),
}
Offset = Annotated[int, Range(0, MOST_TENSOR_BYTES)]


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor as the header describes it."""

    dtype: Annotated[str, OneOf(tuple(DTYPE_BYTES))]
    shape: Annotated[tuple[Offset, ...], Length(0, 64)]
    data_offsets: tuple[Offset, Offset]
    """First byte and the one behind the last, counted from the end of the header."""

    def __post_init__(self) -> None:
        size_bytes = prod(self.shape) * DTYPE_BYTES[self.dtype]
        first, end = self.data_offsets
        if end - first != size_bytes:
            raise ValueError(
                f"data_offsets are {first} to {end}, {self.dtype} of shape {list(self.shape)}"
                f" needs {size_bytes} bytes"
            )


def with_sorted_texts(data: bytes) -> bytes:
    """Return a weights file whose texts are in the order of their keys.

    safetensors writes them in another order each time, so equal weights would not be equal files.
    """
    end = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little")
    header = parse_json(data[LENGTH_BYTES:end])
    if len(texts := header.get(METADATA, {})) < 2:
        return data
    header[METADATA] = dict(sorted(texts.items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)
    return b"".join((len(text).to_bytes(LENGTH_BYTES, "little"), text, memoryview(data)[end:]))


def check_header(path: Path) -> None:
    """Check the header of a weights file. Raises UnknownName, or BrokenFile that names the key."""
    size_bytes = check_file(path, "weights", MOST_TENSOR_BYTES)
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            if not 2 <= length <= min(size_bytes - LENGTH_BYTES, MOST_HEADER_BYTES):
                raise ValueError(f"a header of {length} bytes in a file of {size_bytes}")
            text = file.read(length)
        _check_entries(text, size_bytes - LENGTH_BYTES - length)
    except OSError as error:
        raise BrokenFile(f"weights {path}, they cannot be read, {error.strerror}") from None
    except ValueError as error:
        raise BrokenFile(
            f"weights {path}, not a safetensors file, {one_line(error)[:300]}"
        ) from None


def _check_entries(text: bytes, data_bytes: int) -> None:
    header = parse_json(text)
    if not isinstance(header, dict):
        raise ValueError(f"its header is {type(header).__name__}, expected dict")
    decode(dict[str, str], header.pop(METADATA, {}), METADATA)
    entries: dict[str, TensorEntry] = decode(dict[str, TensorEntry], header, "header")
    end = 0
    for key in sorted(entries, key=lambda key: entries[key].data_offsets):
        first = entries[key].data_offsets[0]
        if first != end:
            fault = "overlaps the tensor before it" if first < end else "leaves a gap before it"
            raise ValueError(f"{key} begins at byte {first}, expected {end}, it {fault}")
        end = entries[key].data_offsets[1]
    if end != data_bytes:
        raise ValueError(f"its tensors end at byte {end}, the file has {data_bytes}")
