"""Names of models that a URL can lead to."""

from __future__ import annotations

from collections.abc import Iterable

from nnstretch.errors import BadInput

NAMES_OF_ROUTES = ("stats", ".", "..")
"""What a URL of Triton, or a client, takes for something else than a model."""


def check_model_names(names: Iterable[str]) -> None:
    """Check that a URL leads to each model. Raises BadInput for the first that has none."""
    for name in names:
        has_bytes = any("\ud800" <= letter <= "\udfff" for letter in name)  # of no UTF-8
        if "/" in name or name in NAMES_OF_ROUTES or has_bytes:
            raise BadInput(f"no URL leads to a model called {name!r}, server, name it otherwise")
