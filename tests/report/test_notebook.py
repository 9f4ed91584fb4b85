"""Nouns as a notebook shows them: small, escaped whatever their names are, without heavy imports."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser

import pytest

from nnstretch.graph import Graph, Node, TensorSpec, Value
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.soc import Link, Processor, Soc
from nnstretch.stretch.cost.iso_mac import IsoMacBaseline
from nnstretch.stretch.search.search_result import ScoredPlan, SearchResult
from nnstretch.task import Task
from nnstretch.trace import Span, Trace
from nnstretch.trial import BranchCost, SegmentCost, Trial

HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=y>', "\u202egnp.exe", "a" * 10_000]
TAGS = {"div", "table", "caption", "thead", "tbody", "tr", "th", "td"}


class Tags(HTMLParser):
    """Collects the names of elements and checks that each is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def graph(name: str, count: int = 3) -> Graph:
    spec = TensorSpec((1, 3))
    nodes = [Node(f"{name}{k}", name, (), (spec,)) for k in range(count)]
    return Graph(name, (Value("x", spec),), (), tuple(nodes), ("x",))


def plan(name: str) -> Plan:
    return Plan(name, (1, 3, 8, 8), (Segment(name, name, (Branch(name, 1, 8),)),))


def trial(name: str) -> Trial:
    cost = BranchCost(name, 1.0, 2.0, 3.0, 0.5, 10, 20)
    return Trial(plan(name), (SegmentCost(name, name, (cost,), 1.0, 1.0, 9.0, 100),), 10, 20)


def trace(name: str) -> Trace:
    return Trace((Span(0.0, 1000.0, Task(name, name, frozenset(), name), name),))


def scored_plan(name: str) -> ScoredPlan:
    return ScoredPlan(trial(name), 1500.0, IsoMacBaseline(8500.0, name, 0.5, 10))


def soc(name: str) -> Soc:
    return Soc(name, (Processor(name, name, 2, Link(3.0, 0.5), memory_bytes=2000),), name, {})


def search(name: str) -> SearchResult:
    return SearchResult(
        (scored_plan(name),),
        trial(name),
        {name: 5000.0},
        {name: 1.0},
        {},
        3.0,
        False,
        4.0,
        1.0,
    )


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("make", [graph, plan, trial, trace, scored_plan, soc, search])
def test_names_cannot_break_out_of_a_small_table(make: object, name: str) -> None:
    html = make(name)._repr_html_()  # type: ignore[operator]
    tags = Tags(html)
    assert tags.names <= TAGS
    assert not tags.open
    assert "\u202e" not in html
    assert len(html) < 8_000


def test_a_long_graph_shows_its_head_and_says_so() -> None:
    html = graph("n", 500)._repr_html_()
    assert html.count("<tr>") == 31
    assert "500 operators" in html
    assert "first 30 of 500" in html


def test_a_trace_of_many_processors_says_how_many() -> None:
    names = [f"cpu{number}" for number in range(40)]
    spans = tuple(Span(0.0, 1.0, Task(name, name, frozenset(), name), name) for name in names)
    assert "(first 30 of 40)" in Trace(spans)._repr_html_()


def test_numbers_are_those_of_the_noun() -> None:
    assert "1 tasks in 1" in trace("cpu")._repr_html_()
    assert "100.0%" in trace("cpu")._repr_html_()
    assert "original on cpu" in search("cpu")._repr_html_()
    assert "± 1.500 ms; of equal MACs on cpu alone 8.500 ms" in scored_plan("cpu")._repr_html_()
    assert "3 + 0.5/KiB" in soc("cpu")._repr_html_()


def test_nouns_do_not_load_the_report() -> None:
    code = "import sys, nnstretch.graph, nnstretch.trace; print('nnstretch.report' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
