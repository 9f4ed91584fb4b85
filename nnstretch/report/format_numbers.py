"""Numbers as people read them: three digits, a unit, a dash where nothing is known."""

from __future__ import annotations

from math import ceil, floor, inf, log10

NBSP = "\u00a0"
UNKNOWN = "–"


def digits(value: float, significant: int = 3) -> str:
    """Format 1234.5 as 1,234, 0.04321 as 0.0432; scientific only below 1e-4 or from 1e15 on."""
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e15:
        return f"{value:.{significant - 1}e}"
    rounded = round(value, significant - 1 - floor(log10(abs(value))))
    decimals = max(significant - 1 - floor(log10(abs(rounded))), 0)
    return f"{value:,.{decimals}f}"


def graph_time(value: float) -> str:
    """Format a time in a task graph's own unit, such as cycles: six digits, or every whole one."""
    return f"{value:.0f}" if 1e5 <= abs(value) < 1e15 else f"{value:g}"


def with_unit(value: float | None, unit: str) -> str:
    """Return a number with its unit, a dash where it is unknown."""
    return UNKNOWN if value is None else f"{digits(value)}{NBSP}{unit}"


def ms(value: float | None) -> str:
    """Return milliseconds as text."""
    return with_unit(value, "ms")


def plain_ms(value: float | None) -> str:
    """Format milliseconds for a column whose head has the unit, with equal decimals to align."""
    return UNKNOWN if value is None else f"{value:,.3f}"


def times(value: float | None) -> str:
    """Return a factor as text."""
    return UNKNOWN if value is None else f"{value:.2f}×"


def percent(share: float | None, decimals: int = 1) -> str:
    """Return a share as percent."""
    return UNKNOWN if share is None else f"{100 * share:.{decimals}f}{NBSP}%"


def signed_percent(share: float) -> str:
    """Return a share as percent with its sign."""
    sign = "+" if share >= 0 else "−"
    return f"{sign}{abs(100 * share):.1f}{NBSP}%"


def accuracy(value: float | None) -> str:
    """Format a share of right answers; a number above 1 is a percentage already."""
    return UNKNOWN if value is None else percent(value if value <= 1 else value / 100)


def count(value: float | None) -> str:
    """Return a count with commas between thousands."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def amount(value: float | None) -> str:
    """Format an amount: 1.81 G, 11.7 M, 512."""
    if value is None:
        return UNKNOWN
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * size:
            return f"{digits(value / size)}{NBSP}{letter}"
    return digits(value)


def seconds(value: float | None) -> str:
    """Return seconds as text, in milliseconds where they are few."""
    if value is None or value >= 0.1 or value == 0:
        return with_unit(value, "s")
    return with_unit(1000 * value, "ms")


def tick(value: float) -> str:
    """Return the number at a tick of an axis."""
    return f"{value:,.6g}"


LEAST_SPAN = 1e-300


def step_for(span: float, wanted: int) -> float:
    """Return 1, 2 or 5 times a power of ten that cuts `span` into at most `wanted` parts."""
    if not LEAST_SPAN <= span < inf:
        return 1.0
    power = 10.0 ** floor(log10(span / wanted))
    return next(power * m for m in (1, 2, 5, 10, 20) if span / (power * m) <= wanted)


def ticks(low: float, high: float, wanted: int = 6) -> tuple[float, ...]:
    """Round numbers from `low` to `high`."""
    step = step_for(high - low, wanted)
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return tuple(round(i * step, 12) for i in range(first, last + 1))
