"""Leave half the parameters of a test to `make check`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def half_slow(parameters: Iterable[Any]) -> list[Any]:
    """Mark every second parameter as slow; a tuple is the values of several names."""
    rows = [p if isinstance(p, tuple) else (p,) for p in parameters]
    return [pytest.param(*row, marks=[pytest.mark.slow] * (n % 2)) for n, row in enumerate(rows)]
