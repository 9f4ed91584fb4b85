"""Style rules without variables, for drawings that stand alone.

Browsers know `var(--name)`; most other programs that draw SVG do not, and draw black or nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")
_VARIABLE = re.compile(r"var\(--([\w-]+)(?:,\s*([^()]*))?\)")
"""A variable, and what stands for it where nothing sets it."""
_CLASSES = re.compile(r"\.[\w-]+")
Setting = tuple[str, str, str]
"""Selector that sets a variable, the variable, its value."""


def plain_rules(css: str, values: Mapping[str, str]) -> str:
    """Return rules whose variables are put in: `values` of the page, others by selector.

    A rule whose variable other rules set becomes one for each of these. Media are left out.
    """
    rules = list(_RULE.findall(css.partition("@media")[0]))
    settings = list(settings_of(rules, values))
    plain: list[str] = []
    for selectors, body in rules:
        if not body.strip().startswith("--"):
            plain += expanded(selectors.strip(), with_values(body, values), settings)
    return "".join(plain)


def settings_of(rules: list[tuple[str, str]], values: Mapping[str, str]) -> Iterator[Setting]:
    """Yield what rules set, with values that are variables themselves put in."""
    direct: list[Setting] = []
    for selectors, body in rules:
        name, colon, value = body.strip().rstrip(";").partition(":")
        if name.startswith("--") and colon:
            for selector in selectors.split(","):
                value = with_values(value, values).strip()
                direct.append((selector.strip(), name.removeprefix("--"), value))
    for selector, name, value in direct:
        inner = _VARIABLE.fullmatch(value)
        if inner is None:
            yield selector, name, value
            continue
        for inner_selector, set_name, set_value in direct:
            if set_name == inner[1]:
                yield selector + inner_selector, name, set_value


def with_values(text: str, values: Mapping[str, str]) -> str:
    """Return text with the variables that have values put in."""
    return _VARIABLE.sub(lambda match: values.get(match[1], match[0]), text)


def expanded(selectors: str, body: str, settings: list[Setting]) -> Iterator[str]:
    """Yield a rule, once for each setting of the variable that it has."""
    variable = _VARIABLE.search(body)
    if variable is None:
        yield f"{selectors}{{{body}}}"
        return
    if variable[2]:
        yield f"{selectors}{{{body.replace(variable[0], variable[2])}}}"
    for setter, name, value in settings:
        if name == variable[1]:
            matching: list[str] = []
            for selector in selectors.split(","):
                matching += selectors_of(selector.strip(), setter)
            yield f"{','.join(matching)}{{{body.replace(variable[0], value)}}}"


def selectors_of(selector: str, setter: str) -> Iterator[str]:
    """Yield what a selector is on an element that sets a variable, and inside of one."""
    outer, space, descendant = selector.partition(" ")
    if space and set(_CLASSES.findall(outer)) <= set(_CLASSES.findall(setter)):
        yield f"{setter} {descendant}"
        return
    yield f"{selector}{setter}"
    yield f"{setter} {selector}"
