"""Every published plan priced by two states of a chip: before a change of its predictors, after."""

from __future__ import annotations

from collections.abc import Iterator

from comparison_tables import ms
from published_plans import Phone

from nnstretch.bench.markdown import markdown_table
from nnstretch.soc import Soc
from nnstretch.stretch.cost.cost_model import CostModel

HEADS = ("plan", "runs on", "measured ms", "before ms", "error", "after ms", "error", "change")
PAGE = """# Published plans before and after the last change of mi9

`python scripts/nn_stretch --before FOLDER --out docs/results/mi9_plans.md`, FOLDER a copy of `latency_predictors/mi9` before it: one factor
on all compute for a pair of processors (1.247 for CPU and DSP, 1.001 for CPU and GPU), EN-L4-CD weighed 0.3. What replaced it is on
the [card](../../latency_predictors/mi9/CARD.md). Plans are priced as imported, so EN-B5 has its squeeze-and-excitation and SiLU here, which
the measured networks had not.

{table}
"""


def plans_page(before: Soc, after: Soc) -> str:
    """Return the page of all published plans with branches."""
    return PAGE.format(table="\n".join(markdown_table(HEADS, rows(Phone(before), after))))


def rows(before: Phone, after: Soc) -> Iterator[list[str]]:
    """Yield a row for each plan; every network is captured once."""
    for network in before.networks:
        before.analysis(network)
        pricers = {name: CostModel(after) for name in before.stretchers}
        now = Phone(after, before.data, before.stretchers, pricers)
        for old, new in zip(before.published(network), now.published(network), strict=True):
            yield [
                old.config,
                old.combination,
                ms(old.measured_us),
                ms(old.predicted_us),
                off(old.predicted_us, old.measured_us),
                ms(new.predicted_us, new.error_us),
                off(new.predicted_us, new.measured_us),
                off(new.predicted_us, old.predicted_us),
            ]


def off(predicted_us: float, expected_us: float | None) -> str:
    """Return by how much a prediction is off, as text."""
    return "-" if expected_us is None else f"{predicted_us / expected_us - 1:+.1%}"
