"""Published configurations and latencies, imported as plans and priced on one chip."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from pathlib import Path

import torch
from comparison_rows import LETTERS, Original, Published, combination_of

from nnstretch.capture import load_model
from nnstretch.capture.torch_export import capture
from nnstretch.soc import Soc
from nnstretch.stretch import LoweredNetwork, NetworkAnalysis, lower, single_processor_plan
from nnstretch.stretch.cost.cost_model import CostModel, estimate_plan
from nnstretch.stretch.published.anynet import (
    PublishedNetwork,
    import_plan,
    match_published_network,
)
from nnstretch.stretch.published.configs_csv import (
    CsvRow,
    config_from_rows,
    read_config_rows,
    read_csv,
)
from nnstretch.stretch.search.constraints import SegmentLimits, constraints_of
from nnstretch.stretch.search.search_result import plan_error_us
from nnstretch.trial import Trial

DATA = Path(__file__).parents[2] / "tests/data/nn_stretch"


@dataclass
class Phone:
    """Networks captured once, and everything priced on one chip."""

    soc: Soc
    data: Path = DATA
    stretchers: dict[str, NetworkAnalysis] = field(default_factory=dict)
    pricers: dict[str, CostModel] = field(default_factory=dict)

    @cached_property
    def configs(self) -> dict[str, list[dict[str, str]]]:
        return read_config_rows(self.data / "configs.csv")

    @cached_property
    def measured(self) -> dict[str, float]:
        rows = read_csv(self.data / "latency_mi9.csv")
        return {row["config"]: float(row["latency_us"]) for row in rows}

    @cached_property
    def networks(self) -> tuple[str, ...]:
        """From the smallest residual network to the largest mobile one."""
        names = dict.fromkeys(rows[0]["model"] for rows in self.configs.values())
        order = {"R-34": 0, "R-50": 1, "RX-1.6": 2, "RX-4": 3, "EN-L4": 4, "EN-B5": 5}
        return tuple(sorted(names, key=lambda name: (order.get(name, len(order)), name)))

    def family(self, network: str) -> PublishedNetwork:
        return match_published_network(config_from_rows(self.configs[f"{network}-C"]))

    def analysis(self, network: str) -> NetworkAnalysis:
        if network not in self.stretchers:
            model = self.family(network).model
            self.stretchers[network] = NetworkAnalysis(
                capture(load_model(model), torch.zeros(1, 3, 224, 224), model)
            )
            self.pricers[network] = CostModel(self.soc)
        return self.stretchers[network]

    def trial(self, network: str, lowered: LoweredNetwork) -> Trial:
        return estimate_plan(lowered, self.soc, self.pricers[network])

    def original(self, network: str) -> Original:
        analysis = self.analysis(network)
        model = analysis.graph.name
        trials = {
            p: self.trial(network, lower(analysis, single_processor_plan(analysis.graph, model, p)))
            for p in LETTERS.values()
        }
        published = {name: f"{network}-{letter}" for letter, name in LETTERS.items()}
        return Original(
            network,
            model,
            analysis.graph.macs,
            analysis.graph.params,
            {name: trial.latency_us for name, trial in trials.items()},
            {name: plan_error_us(trial) for name, trial in trials.items()},
            {
                name: self.measured[config]
                for name, config in published.items()
                if config in self.measured
            },
        )

    def published(self, network: str) -> Iterator[Published]:
        """Every branched configuration of a network."""
        for config, rows in self.configs.items():
            combination = combination_of(config) if rows[0]["model"] == network else None
            if combination is not None:
                yield self.priced(config, combination, rows)

    def priced(self, config: str, combination: str, rows: Sequence[CsvRow]) -> Published:
        network, read = rows[0]["model"], config_from_rows(rows)
        analysis = self.analysis(network)
        lowered = lower(analysis, import_plan(read, analysis, match_published_network(read)))
        trial = self.trial(network, lowered)
        return Published(
            config,
            network,
            combination,
            trial.macs,
            trial.params,
            trial.latency_us,
            plan_error_us(trial),
            self.measured.get(config),
            breaks=broken(trial, self.soc),
            outside=outside(lowered, analysis),
            processors=trial.plan.processors,
            meetings=sum(segment.branched for segment in trial.plan.segments),
            as_published=rows[0]["config_consistent"] == "True",
        )


def broken(trial: Trial, soc: Soc, limits: SegmentLimits | None = None) -> tuple[str, ...]:
    """Names of the constraints that some segment breaks, in the order of the rules."""
    rules = constraints_of(limits or SegmentLimits(), soc)
    alone = [replace(trial, segments=(segment,)) for segment in trial.segments]
    names: dict[str, None] = {}
    for rule in rules:
        violations = [rule(segment) for segment in alone]
        names |= dict.fromkeys(v.rule for v in violations if v is not None)
    return tuple(names)


def outside(
    lowered: LoweredNetwork, analysis: NetworkAnalysis, limits: SegmentLimits | None = None
) -> tuple[str, ...]:
    """Name what no search can find in a plan: it joins by concat, keeps inner ratios and groups,
    and scales down only.
    """
    limits = limits or SegmentLimits()
    names: dict[str, None] = {}
    for segment in (s for s in lowered.segments if s.segment.branched):
        start, end = analysis.cut(segment.segment.start), analysis.cut(segment.segment.end)
        full, deep = analysis.section(start, end, None).width_out, analysis.depth(start, end)
        branches = [row.branch for row in segment.branches]
        facts = {
            "merge by projection": segment.segment.merge != "concat",
            "inner ratio": any(b.inner_ratio is not None for b in branches),
            "group width": any(b.group_width is not None for b in branches),
            "other activation": any(b.activation is not None for b in branches),
            "wider than the original": any(int(b.width or full) > full for b in branches),
            "deeper than the original": any(int(b.depth or deep) > deep for b in branches),
            "narrower than min_width": any(
                int(b.width or full) < limits.min_width * full for b in branches
            ),
            "shallower than min_depth": any(
                int(b.depth or deep) < ceil(limits.min_depth * deep - 1e-9) for b in branches
            ),
        }
        names |= dict.fromkeys(name for name, true in facts.items() if true)
    return tuple(names)
