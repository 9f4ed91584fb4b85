"""Published configurations and latencies as `reproduce_nn_stretch.py` compares them.

Read, imported as plans, priced.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from pathlib import Path

import torch
from reproduce_rows import LETTERS, Original, Published, combination_of

from nnstretch.capture import load_model
from nnstretch.capture.torch_export import capture
from nnstretch.errors import BrokenFile, UnknownName
from nnstretch.soc import Soc
from nnstretch.stretch import LoweredNetwork, NetworkAnalysis, lower, single_processor_plan
from nnstretch.stretch.cost.cost_model import CostModel, estimate_plan
from nnstretch.stretch.published.anynet import (
    AnyNetConfig,
    PublishedNetwork,
    import_plan,
    match_published_network,
)
from nnstretch.stretch.published.anynet_yaml import DEVICES, activation_name
from nnstretch.stretch.search.constraints import SegmentLimits, constraints_of
from nnstretch.stretch.search.search import plan_error_us
from nnstretch.trial import Trial

DATA = Path(__file__).parents[1] / "tests/data/nn_stretch"
Record = Mapping[str, str]


def records(path: Path) -> list[dict[str, str]]:
    """Raises UnknownName where the file is not there."""
    try:
        return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    except OSError as error:
        raise UnknownName(
            f"cannot read {path}, published data, {error.strerror or error}"
        ) from error


def configurations(data: Path = DATA) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {}
    for row in records(data / "configs.csv"):
        found.setdefault(row["config"], []).append(row)
    return found


def measured_us(data: Path = DATA) -> dict[str, float]:
    return {row["config"]: float(row["latency_us"]) for row in records(data / "latency_mi9.csv")}


def config_of(rows: Sequence[Record]) -> AnyNetConfig:
    """A configuration from its rows. Raises BrokenFile that names the configuration."""
    try:
        return read_rows(rows)
    except (KeyError, ValueError) as error:
        raise BrokenFile(
            f"configuration {rows[0].get('config', '?')} is unreadable, configs.csv, {error!r}"
        ) from error


def read_rows(rows: Sequence[Record]) -> AnyNetConfig:
    first, stages = rows[0], {}
    for row in rows:
        if row["branch"] != "-1":
            stages.setdefault(row["part"], []).append(row)
    version = int(activation_name(first["mb_ver"]))
    devices = [row["device"] for stage in stages.values() for row in stage]

    def whole(key: str) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(int(row[key]) for row in stage) for stage in stages.values())

    def merged(stage: Sequence[Record]) -> int:
        return (
            int(stage[0]["orig_width"])
            if version == 1
            else sum(int(row["branch_out_w"]) for row in stage)
        )

    body = stages["s1"][0]
    return AnyNetConfig(
        where=first["config"],
        block=first["block"],
        stem=activation_name(first["stem_type"]),
        stem_width=int(first["stem_w"]),
        head_width=int(first["head_w"] or 0),
        squeeze=first["se_on"] == "True",
        version=version,
        depths=whole("depth"),
        widths=whole("width"),
        strides=whole("stride"),
        inner=tuple(tuple(float(row["bot_mul"]) for row in stage) for stage in stages.values()),
        group_widths=whole("group_w") if body["group_w"] else None,
        kernels=(
            tuple(int(stage[0]["kernel"]) for stage in stages.values()) if body["kernel"] else None
        ),
        merged=tuple(merged(stage) for stage in stages.values()),
        devices=tuple(DEVICES[name] for name in dict.fromkeys(devices)),
        stem_device=DEVICES[first["stem_device"]],
        head_device=DEVICES[first["head_device"]],
        activations=tuple(
            (first["act_per_branch"] or activation_name(first["act_model"])).split("/")
        ),
        image_size=int(first["train_im_size"]),
    )


@dataclass
class Phone:
    """Networks captured once, and everything priced on one chip."""

    soc: Soc
    data: Path = DATA
    stretchers: dict[str, NetworkAnalysis] = field(default_factory=dict)
    pricers: dict[str, CostModel] = field(default_factory=dict)

    @cached_property
    def configs(self) -> dict[str, list[dict[str, str]]]:
        return configurations(self.data)

    @cached_property
    def measured(self) -> dict[str, float]:
        return measured_us(self.data)

    @cached_property
    def networks(self) -> tuple[str, ...]:
        """From the smallest residual network to the largest mobile one."""
        names = dict.fromkeys(rows[0]["model"] for rows in self.configs.values())
        order = {"R-34": 0, "R-50": 1, "RX-1.6": 2, "RX-4": 3, "EN-L4": 4, "EN-B5": 5}
        return tuple(sorted(names, key=lambda name: (order.get(name, len(order)), name)))

    def family(self, network: str) -> PublishedNetwork:
        return match_published_network(config_of(self.configs[f"{network}-C"]))

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

    def priced(self, config: str, combination: str, rows: Sequence[Record]) -> Published:
        network, read = rows[0]["model"], config_of(rows)
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
    found = [
        violation.rule for rule in rules for one in alone if (violation := rule(one)) is not None
    ]
    return tuple(dict.fromkeys(found))


def outside(
    lowered: LoweredNetwork, analysis: NetworkAnalysis, limits: SegmentLimits | None = None
) -> tuple[str, ...]:
    """What of a plan no search can find.

    It joins by concat, keeps inner ratios and groups, and scales down only.
    """
    limits = limits or SegmentLimits()
    found: dict[str, None] = {}
    for segment in (s for s in lowered.segments if s.segment.branched):
        start, end = analysis.cut(segment.segment.start), analysis.cut(segment.segment.end)
        full, deep = analysis.section(start, end, None).width_out, analysis.depth(start, end)
        branches = [one.branch for one in segment.branches]
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
        found |= dict.fromkeys(name for name, true in facts.items() if true)
    return tuple(found)
