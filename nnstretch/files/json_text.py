"""JSON text read strictly: no key twice, no NaN, no depth bombs, a bounded size."""

from __future__ import annotations

import json
import sys
from codecs import BOM_UTF8
from pathlib import Path
from typing import Any

from nnstretch.errors import BrokenFile, one_line
from nnstretch.files.read import MOST_JSON_BYTES, read_bytes


def read_json(path: Path, most_bytes: int = MOST_JSON_BYTES) -> Any:
    """Read a JSON file. Raises UnknownName where there is none, BrokenFile for no JSON."""
    data = read_bytes(path, "file", most_bytes)
    try:
        return parse_json(data.removeprefix(BOM_UTF8))
    except ValueError as error:
        raise BrokenFile(f"not JSON, {path}, {one_line(error)[:200]}") from None


def parse_json(text: bytes | str, not_finite: bool = False) -> Any:
    """Parse JSON without duplicate keys, NaN or depth bombs. Raises ValueError for others.

    With `not_finite`, NaN and infinities are left to the decoder, which names their place.
    """
    try:
        return json.loads(
            text.decode("utf-8") if isinstance(text, bytes) else text,
            object_pairs_hook=_no_duplicates,
            parse_constant=float if not_finite else _no_constant,
        )
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        if "integer string conversion" not in str(error):
            raise
        most = sys.get_int_max_str_digits()
        raise ValueError(f"a whole number of more than {most} digits") from None


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError(f"a key twice among {sorted(name for name, _ in pairs)}")
    return result


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number")
