"""The page's own style sheet and its few lines of script; nothing is fetched from anywhere."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from nnstretch.report.charts.palette import PROCESSORS, colour_rules
from nnstretch.report.charts.svg import shared_patterns
from nnstretch.report.html import Markup
from nnstretch.report.plain_style import plain_rules

_COLOURS = {
    "page": ("#f6f7f9", "#0f141a"),
    "card": ("#ffffff", "#171e26"),
    "ink": ("#16202c", "#e8edf3"),
    "soft": ("#4c5a6b", "#b3bfcc"),
    "faint": ("#647182", "#93a1b1"),
    "rule": ("#dbe1e8", "#2c3742"),
    "grid": ("#e6eaef", "#26303a"),
    "idle": ("#c9d2dc", "#465462"),
    "on-p": ("#ffffff", "#0d1319"),
    "sync": ("#8a6d00", "#e5d04c"),
    "merge": ("#3d4957", "#c4cfdb"),
    "original": ("#b3bdc9", "#5b6a7a"),
    "count": ("#5b6b7e", "#8fa0b3"),
    "series": ("#b84a00", "#f2a65a"),
    "c1": PROCESSORS["cpu"],
    "c2": PROCESSORS["dsp"],
}
"""(light page, dark page) of everything that is not a processor."""


def _colours(dark: bool) -> str:
    chosen = "".join(f"--{name}:{pair[dark]};" for name, pair in _COLOURS.items())
    return f":root{{{chosen}}}{colour_rules(dark)}"


def style_sheet() -> Markup:
    """Return the style sheet; light colors also print, dark ones are for screens that ask."""
    dark = f"@media screen and (prefers-color-scheme:dark){{{_colours(dark=True)}}}"
    return Markup(f"<style>{_colours(dark=False)}{dark}\n{_shipped('page.css')}</style>")


def stand_alone(drawing: Markup) -> str:
    """Return a drawing of the page as an SVG file, with its colors and textures in it.

    They are those of a light page, without variables.
    """
    head, _, body = drawing.partition(">")
    values = {name: light for name, (light, _) in _COLOURS.items()}
    opening = head.replace(
        "<svg", f'<svg xmlns="http://www.w3.org/2000/svg" style="background:{values["card"]}"', 1
    )
    rules = plain_rules(colour_rules(dark=False) + _shipped("page.css"), values)
    return f"{opening}><style>{rules}</style>{shared_patterns()}{body}\n"


def script() -> Markup:
    """Return the page's script."""
    return Markup(f"<script>{_shipped('page.js')}</script>")


def content_policy() -> str:
    """Return the policy that allows only this style and this script, and fetches nothing."""
    digest = base64.b64encode(hashlib.sha256(_shipped("page.js").encode()).digest()).decode()
    sources = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return f"{sources}; base-uri 'none'; form-action 'none'"


def _shipped(name: str) -> str:
    return files("nnstretch.report").joinpath(name).read_text(encoding="utf-8")
