"""A plan and a graph become a stretched network: described, priced, searched and built.

Only `stretch` itself loads torch; describing and searching do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nnstretch.planfile import read_plan, write_plan
from nnstretch.stretch.lower import Stretched, Stretcher, lower, unbranched
from nnstretch.verbs import callable_verb

if TYPE_CHECKING:
    from nnstretch.stretch.module import StretchedNetwork, stretch
    from nnstretch.stretch.optimum import SearchResult, search

_LAZY = {
    "stretch": "nnstretch.stretch.module",
    "StretchedNetwork": "nnstretch.stretch.module",
    "search": "nnstretch.stretch.optimum",
    "SearchResult": "nnstretch.stretch.optimum",
}
callable_verb(__name__)
__all__ = [
    "SearchResult",
    "Stretched",
    "StretchedNetwork",
    "Stretcher",
    "lower",
    "read_plan",
    "search",
    "stretch",
    "unbranched",
    "write_plan",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _LAZY:
        value = getattr(import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'nnstretch.stretch' has no attribute {name!r}")
