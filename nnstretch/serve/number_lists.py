"""Long lists of numbers in JSON, read and written piece by piece.

The standard library reads and writes JSON without ever giving up the interpreter: 150,000 numbers
would stop the event loop and the scheduler for a tenth of a second, whatever thread they are read
on. Between two pieces other threads run.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from nnstretch.files.json_text import parse_json

PIECE_BYTES = 16 << 10
PIECE_NUMBERS = 1000
"""What is read or written at once: about half a millisecond."""
LONG_BYTES = 16 << 10
"""Lists from here on are taken out of the JSON before it is parsed."""
FIRST_LOOK_BYTES = 256
"""How far the end of a list is looked for first; then twice as far each time, up to a piece."""
MOST_PIECE_BYTES = 1 << 20
"""Of a list without a comma: a piece is read at once, however long it is."""
DATA = re.compile(rb'"data"\s*:\s*((?:\[\s*){1,32})')
NUMBERS = b"0123456789+-.eE \t\r\ntruefals"
"""All that a list of numbers has beside brackets and commas."""
NUMBER_TYPES = frozenset({bool, int, float})
SPACE = b" \t\r\n"
CLOSING = re.compile(rb"\][\] \t\r\n]{0,16384}")
"""Ends of lists with nothing but space between them; bounded, as each is matched at once."""
MISPLACED = re.compile(rb"\[(?<=[^\[\],]\[)|\][^\[\],]")
"""A number in front of a list, or behind one, without a comma in between; in text without space."""
SECRET = secrets.token_hex(16)
"""Part of the names of lists that were taken out, so that no client can forge one."""


@dataclass(frozen=True, slots=True)
class NumberList:
    """A long list in a request that is not parsed yet."""

    text: bytes

    def numbers(self, shape: Sequence[int]) -> np.ndarray:
        """Return the numbers, flat. Raises ValueError where they are not a JSON list of `shape`,
        nested or flat.
        """
        arrays: list[np.ndarray] = []
        brackets: list[bytes] = []
        count = 0
        for piece in pieces_of(self.text):
            if len(piece) > MOST_PIECE_BYTES:
                raise ValueError(f"{len(piece)} bytes without a comma")
            if piece.translate(None, NUMBERS + b"[],"):
                raise ValueError("something else than numbers")
            if MISPLACED.search(piece.translate(None, SPACE)):
                raise ValueError("a number and a list without a comma between them")
            brackets.append(piece.translate(None, NUMBERS))
            arrays.append(np.asarray(parse_json(b"[%b]" % piece.translate(None, b"[]"))))
            count += arrays[-1].size
            if count > prod(shape):
                raise ValueError("more numbers than the tensor has")
            time.sleep(0)  # whoever waits for the interpreter comes first
        if b",".join(brackets) not in (skeleton((prod(shape),)), skeleton(shape)):
            raise ValueError("nested otherwise than the tensor")
        return np.concatenate(arrays)


@dataclass(frozen=True, slots=True)
class ShortenedJson:
    """JSON, with names where long lists of numbers were."""

    text: bytes
    lists: dict[str, NumberList] = field(default_factory=dict)

    def data_of(self, item: dict[str, Any]) -> object:
        """Return the data of an input: JSON, or the list that was taken out of the text."""
        data = item.get("data")
        return self.lists.get(data, data) if type(data) is str else data


def holds_truth(data: NumberList | list[Any]) -> bool:
    """Return whether `true` or `false` stands among the values, which numpy would take for 1 or 0.

    The lists may be nested.
    """
    if isinstance(data, NumberList):
        return b"u" in data.text or b"l" in data.text
    return any(holds_truth(item) if type(item) is list else type(item) is bool for item in data)


def holds_numbers(data: list[Any]) -> bool:
    """Return whether numbers and truth values alone stand in a list, nested or flat.

    Of text, numpy would make a table in which each is as wide as the longest.
    """
    kinds = set(map(type, data))
    nested = kinds <= NUMBER_TYPES | {list}
    return nested and all(holds_numbers(item) for item in data if type(item) is list)


def without_long_lists(text: bytes) -> ShortenedJson:
    """Take every long list that stands under `data` out of a JSON text.

    Whether it is one is seen when its numbers are read: a list that is none is refused then.
    """
    parts: list[bytes] = []
    lists: dict[str, NumberList] = {}
    ends = ListEnds(text)
    kept = 0
    for key in DATA.finditer(text):
        begin, depth = key.start(1), key.group(1).count(b"[")
        if begin < kept:
            continue
        end = ends.behind(key.end(), depth)
        if end - begin < LONG_BYTES:
            continue
        name = f"{SECRET}-{len(lists)}"
        lists[name] = NumberList(text[begin:end])
        parts += [text[kept:begin], json.dumps(name).encode()]
        kept = end
    return ShortenedJson(b"".join([*parts, text[kept:]]), lists)


@dataclass(frozen=True, slots=True)
class ListEnds:
    """Where lists end in a text, which is read once for each depth, however many begin in it."""

    text: bytes
    _ends: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By depth, where the ends begin that were looked up last, and what is behind them."""

    def behind(self, begin: int, depth: int) -> int:
        """Return where `depth` lists end at once behind `begin`; 0 where they do not.

        `begin` never falls from call to call.
        """
        if self._ends.get(depth, (-1, 0))[0] < begin:
            self._ends[depth] = closing_of(self.text, begin, depth)
        return self._ends[depth][1]


def closing_of(text: bytes, begin: int, depth: int) -> tuple[int, int]:
    """Return where `depth` lists begin to end at once, from `begin` on, and what is behind them;
    the length of the text and 0 where they do not.

    Looks at one piece after another, in a time that does not grow with the depth.
    """
    size = FIRST_LOOK_BYTES
    while begin < len(text):
        last_row = CLOSING.match(text, max(0, text.rfind(b"]", begin, begin + size)))
        piece_end = max(begin + size, last_row.end() if last_row else 0)
        if b"]" * depth in text[begin:piece_end].translate(None, SPACE):
            for row in CLOSING.finditer(text, begin, piece_end):
                if text.count(b"]", *row.span()) >= depth:
                    return row.start(), behind_closings(text, row.start(), depth)
        begin, size = piece_end, min(2 * size, PIECE_BYTES)
        time.sleep(0)  # whoever waits for the interpreter comes first
    return len(text), 0


def behind_closings(text: bytes, begin: int, depth: int) -> int:
    """Return what is behind the first `depth` closing brackets."""
    for _ in range(depth):
        begin = text.index(b"]", begin) + 1
    return begin


def pieces_of(text: bytes) -> Iterator[bytes]:
    """Yield a text in pieces that end where a comma was."""
    begin = 0
    while (comma := text.find(b",", begin + PIECE_BYTES)) >= 0:
        yield text[begin:comma]
        begin = comma + 1
    yield text[begin:]


def skeleton(shape: Sequence[int]) -> bytes:
    """Return brackets and commas of the JSON list of a shape."""
    inner = b""
    for size in reversed(shape):
        inner = b"[%b]" % b",".join([inner] * size)
    return inner


def text_of_numbers(array: np.ndarray) -> str:
    """Return the JSON list of an array's numbers, flat."""
    flat = array.ravel()
    pieces: list[str] = []
    for begin in range(0, flat.size, PIECE_NUMBERS):
        pieces.append(json.dumps(flat[begin : begin + PIECE_NUMBERS].tolist())[1:-1])
        time.sleep(0)
    return f"[{', '.join(pieces)}]"
