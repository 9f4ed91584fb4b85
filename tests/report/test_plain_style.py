"""Drawings that stand alone: style rules in which the variables of the page are put in."""

from __future__ import annotations

import re

from nnstretch.report.charts.palette import PROCESSORS, SPARE
from nnstretch.report.html import Markup
from nnstretch.report.plain_style import plain_rules
from nnstretch.report.style import stand_alone


def test_values_of_the_page_are_put_in() -> None:
    css = ".grid { stroke: var(--grid); fill: none; }\n@media print { .grid { stroke: black; } }"
    assert plain_rules(css, {"grid": "#eee"}) == ".grid{ stroke: #eee; fill: none; }"


def test_a_variable_that_classes_set_becomes_a_rule_for_each() -> None:
    css = ".p-a{--p:#111}.p-b{--p:#222}.bar,.box{fill:var(--p)}"
    assert plain_rules(css, {}) == (
        ".bar.p-a,.p-a .bar,.box.p-a,.p-a .box{fill:#111}"
        ".bar.p-b,.p-b .bar,.box.p-b,.p-b .box{fill:#222}"
    )


def test_a_variable_may_be_another_one_and_may_have_a_default() -> None:
    css = ".i-0{--p:#111}.curve.own{--s:var(--p)}.curve.grey{--s:var(--count)}.curve circle{fill:var(--s)}"
    assert plain_rules(css, {"count": "#999"}) == (
        ".curve.own.i-0 circle{fill:#111}.curve.grey circle{fill:#999}"
    )
    css = ".p-a{--p:#111}.name{fill:var(--p,var(--ink))}"
    assert plain_rules(css, {"ink": "#000"}) == ".name{fill:#000}.name.p-a,.p-a .name{fill:#111}"


def test_a_drawing_that_stands_alone_has_the_pages_colours_and_no_variable() -> None:
    written = stand_alone(Markup('<svg viewBox="0 0 1 1"><rect class="bar p-gpu"/></svg>'))
    assert "var(--" not in written
    assert (
        f".bar.p-gpu,.p-gpu .bar,.term-compute.p-gpu,.p-gpu .term-compute{{ fill: {PROCESSORS['gpu'][0]}; }}"
        in written
    )
    for light, _ in (*PROCESSORS.values(), *SPARE):
        assert light in written
    assert len(re.findall("<style>", written)) == 1
