"""Where the data that ships with the package lies.

Beside it in a checkout, inside it in a wheel.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def package_data(folder: str) -> Path:
    """Return the folder `recipes`, `latency_predictors`, `accelerators` or `cpp`."""
    inside = PACKAGE / "data" / folder
    return inside if inside.is_dir() else PACKAGE.parent / folder
