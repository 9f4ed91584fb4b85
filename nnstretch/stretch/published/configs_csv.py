"""Published configurations from the tidy table `configs.csv`, a row for each branch of a stage."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from nnstretch.errors import BrokenFile, UnknownName
from nnstretch.stretch.published.anynet_yaml import DEVICES, AnyNetConfig, activation_name

CsvRow = Mapping[str, str]


def read_csv(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table of published data. Raises UnknownName where it cannot be read."""
    try:
        return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    except OSError as error:
        raise UnknownName(
            f"cannot read {path}, published data, {error.strerror or error}"
        ) from error


def read_config_rows(path: Path) -> dict[str, list[dict[str, str]]]:
    """Return the rows of every configuration by its name. Raises UnknownName."""
    configs: dict[str, list[dict[str, str]]] = {}
    for row in read_csv(path):
        configs.setdefault(row["config"], []).append(row)
    return configs


def config_from_rows(rows: Sequence[CsvRow]) -> AnyNetConfig:
    """Return a configuration. Raises BrokenFile that names it where a row is unreadable."""
    try:
        return parse_rows(rows)
    except (KeyError, ValueError) as error:
        raise BrokenFile(
            f"configuration {rows[0].get('config', '?')} is unreadable, configs.csv, {error!r}"
        ) from error


def parse_rows(rows: Sequence[CsvRow]) -> AnyNetConfig:
    """Return a configuration. Raises KeyError or ValueError where a column is not as expected."""
    first = rows[0]
    stages: dict[str, list[CsvRow]] = {}
    for row in rows:
        if row["branch"] != "-1":
            stages.setdefault(row["part"], []).append(row)
    version = int(activation_name(first["mb_ver"]))
    body = [stage[0] for stage in stages.values()]
    devices = [row["device"] for row in chain.from_iterable(stages.values())]

    def whole(key: str) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(int(row[key]) for row in stage) for stage in stages.values())

    merged = [int(row["orig_width"]) for row in body]
    if version != 1:
        merged = [sum(int(row["branch_out_w"]) for row in stage) for stage in stages.values()]
    activations = first["act_per_branch"] or activation_name(first["act_model"])
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
        group_widths=whole("group_w") if body[0]["group_w"] else None,
        kernels=tuple(int(row["kernel"]) for row in body) if body[0]["kernel"] else None,
        merged=tuple(merged),
        devices=tuple(DEVICES[name] for name in dict.fromkeys(devices)),
        stem_device=DEVICES[first["stem_device"]],
        head_device=DEVICES[first["head_device"]],
        activations=tuple(activations.split("/")),
        image_size=int(first["train_im_size"]),
    )
