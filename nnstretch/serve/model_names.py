"""Names of models that a URL can lead to."""

from __future__ import annotations

from collections.abc import Iterable

from nnstretch.errors import BadInput

NAMES_OF_ROUTES = ("stats", ".", "..")
"""What a URL of Triton, or a client, takes for something else than a model."""


def check_model_names(names: Iterable[str]) -> None:
    """Check that a URL leads to each model. Raises BadInput for the first that has none."""
    for name in names:
        if "/" in name or name in NAMES_OF_ROUTES:
            raise BadInput(f"no URL leads to a model called {name!r}, server, name it otherwise")
