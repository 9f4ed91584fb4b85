"""--rule NAME=VALUE: a rule that the published text leaves open, set to another value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from nnstretch.accelerate.policies import SCOPES, ScheduleOptions
from nnstretch.errors import BadInput, closest

ORDERS = ("best", "depth", "breadth")
SWITCH = {"yes": True, "no": False}


def switch(text: str) -> bool | None:
    """Return whether a rule is on, None where the text says neither."""
    return SWITCH.get(text)


def order(text: str) -> str | None:
    """Return the order of instances, None where the text names none."""
    return text if text in ORDERS else None


def share(text: str) -> float | None:
    """Return a number of at least 0, None where the text is none."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value >= 0 else None


Rule = tuple[str, str, Callable[[str], Any]]
"""The field of the options, what its value may be, and its reader."""
RULES: dict[str, Rule] = {
    "order": ("order", "best, depth or breadth", order),
    "batch-only": ("batch_only", "yes or no", switch),
    "propagate": ("propagate", "yes or no", switch),
    "recomputed": ("recomputed_share", "a share of a group's MACs from 0 on, as 0.1", share),
    "clean-up": ("clean_up", "yes or no", switch),
    "parts-margin": ("parts_margin", "a number from 0 on, or inf", share),
    "keep-weights": ("keep_weights", "yes or no", switch),
}
"""By the name on the command line."""
HELP = (
    "a rule of grouping other than its default, one NAME=VALUE each time: order=depth (best: fewer"
    " bytes wait), batch-only=yes (maps, channels and tokens are not cut), propagate=yes (an"
    " inherited binding is passed on), recomputed=0.2 (MACs that halos compute twice; 0.1),"
    " clean-up=no (small groups stay), parts-margin=inf (parts are kept where they do not pay; 1),"
    " keep-weights=yes (in the global buffer between instances where that is faster; best does)"
)


def options_with_rules(options: ScheduleOptions, settings: Sequence[str]) -> ScheduleOptions:
    """Return options with the rules of a command line. Raises BadInput for one that is none."""
    if settings and options.policy in SCOPES:
        raise BadInput(
            f"--rule {settings[0]}, policy {options.policy}, it computes layer by layer and has no"
            " such rule, write --policy ordered, graphturbo or best"
        )
    values: dict[str, Any] = {}
    for setting in settings:
        name, _, text = setting.partition("=")
        if name not in RULES:
            near = closest(name, list(RULES)) or f"; rules are {', '.join(RULES)}"
            raise BadInput(f"unknown rule {name!r}, --rule {setting}{near}")
        field, allowed, read = RULES[name]
        if field in values:
            raise BadInput(f"rule {name!r} is set twice, --rule, name each rule once")
        value = read(text)
        if value is None:
            raise BadInput(f"rule {name!r} is {text!r}, --rule, write {name}= {allowed}")
        values[field] = value
    return replace(options, **values)
