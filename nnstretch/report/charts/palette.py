"""One colour per processor on the whole page, told apart by colour-blind eyes, too."""

from __future__ import annotations

import re
from collections.abc import Iterable

from nnstretch.report.html import Markup, tag

# (light page, dark page): Okabe and Ito's hues, darkened so that white text reads on them,
# lightened for dark pages.
PROCESSORS = {
    "cpu": ("#0067a8", "#5ab4ea"),
    "gpu": ("#b84a00", "#f2a65a"),
    "dsp": ("#007a58", "#3fc99d"),
    "npu": ("#9c4583", "#e6a3cb"),
}
SPARE = (("#7a6300", "#e5d04c"), ("#4a5568", "#a9b8cc"), ("#7b3f00", "#d9a06b"))
ITEMS = (*PROCESSORS.values(), *SPARE[:2])
"""One after another: of six items in a row no two look alike."""
_SAFE = re.compile(r"[a-z0-9]+")


def colour_class(processor: str) -> str:
    """Return `p-cpu` also for `cpu0`, or a spare color that depends on nothing but the name."""
    kind = _SAFE.match(processor.lower())
    known = kind and next((name for name in PROCESSORS if kind[0].startswith(name)), None)
    return f"p-{known}" if known else f"p-x{sum(map(ord, processor)) % len(SPARE)}"


def colour_rules(dark: bool) -> str:
    """Return CSS that sets --p, the colour of a processor or of an item, by class."""
    named = {**PROCESSORS, **{f"x{i}": pair for i, pair in enumerate(SPARE)}}
    items = "".join(f".i-{number}{{--p:{pair[dark]}}}" for number, pair in enumerate(ITEMS))
    return "".join(f".p-{name}{{--p:{pair[dark]}}}" for name, pair in named.items()) + items


def item_class(number: int) -> str:
    """Return the colour of the n-th item of a stream."""
    return f"i-{number % len(ITEMS)}"


def legend(entries: Iterable[tuple[str, str]]) -> Markup:
    """Explain swatches, given as (its classes, what it stands for)."""
    spans = (tag("span", tag("i", class_=f"swatch {look}"), name) for look, name in entries)
    return tag("p", *spans, class_="legend")


def processor_legend(processors: Iterable[str]) -> list[tuple[str, str]]:
    """Return the color class and name of each processor."""
    return [(colour_class(name), name) for name in dict.fromkeys(processors)]
