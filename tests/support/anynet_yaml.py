"""Published configurations in their own form, written from the tidy table that tests keep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nnstretch.stretch.published.configs_csv import read_config_rows

DATA = Path(__file__).parents[1] / "data" / "nn_stretch"
PUBLISHED_SUMS = {
    **{f"EN-B5-{letter}": {"s5": 172} for letter in "CGD"},
    "RX-1.6-CDG": {"s3": 696},
    "RX-4-CDG": {"s4": 2360},
}
"""Merged widths as published, where the table holds the sums that make a configuration consistent.
"""

Row = dict[str, str]


def configurations() -> dict[str, list[Row]]:
    return read_config_rows(DATA / "configs.csv")


def plain(value: str) -> str:
    return value.partition("(")[0]


def stages_of(rows: Sequence[Row]) -> dict[str, list[Row]]:
    stages: dict[str, list[Row]] = {}
    for row in rows:
        if row["branch"] != "-1":
            stages.setdefault(row["part"], []).append(row)
    return stages


def compact(rows: list[list[Any]], scalars: bool) -> list[Any]:
    """With `scalars`, a stage of one branch is a number, as some published files write it."""
    return [row[0] if scalars and len(row) == 1 else row for row in rows]


def document(
    rows: Sequence[Row], scalars: bool = False, as_published: bool = False
) -> dict[str, Any]:
    """The YAML of one configuration; `as_published` keeps the sums that contradict the widths."""
    first, stages = rows[0], stages_of(rows)
    version = plain(first["mb_ver"])
    sums = [
        int(s[0]["orig_width"]) if version == "1" else sum(int(r["branch_out_w"]) for r in s)
        for s in stages.values()
    ]
    if as_published:
        sums = [
            PUBLISHED_SUMS.get(first["config"], {}).get(part, value)
            for part, value in zip(stages, sums, strict=True)
        ]

    def numbers(key: str, kind: type = int) -> list[Any]:
        return compact([[kind(r[key]) for r in s] for s in stages.values()], scalars)

    anynet: dict[str, Any] = {
        "STEM_TYPE": plain(first["stem_type"]),
        "STEM_W": int(first["stem_w"]),
        "BLOCK_TYPE": first["block"],
        "STRIDES": numbers("stride"),
        "DEPTHS": numbers("depth"),
        "WIDTHS": numbers("width"),
        "BOT_MULS": numbers("bot_mul", float),
        "DEVICES": list(dict.fromkeys(r["device"] for s in stages.values() for r in s)),
        "STEM_DEVICE": first["stem_device"],
        "HEAD_DEVICE": first["head_device"],
        "MERGE_DEVICE": first["merge_device"],
        "ORIGINAL_WIDTHS": sums,
        "SE_ON": first["se_on"] == "True",
    }
    if first["head_w"]:
        anynet["HEAD_W"] = int(first["head_w"])
    if version == "1":
        anynet["MB_VER"] = 1
    if stages["s1"][0]["group_w"]:
        anynet["GROUP_WS"] = numbers("group_w")
    if stages["s1"][0]["kernel"]:
        anynet["KERNELS"] = [int(s[0]["kernel"]) for s in stages.values()]
    if first["act_per_branch"]:
        anynet["ACTIVATION_FUN"] = first["act_per_branch"].split("/")
    model = {"TYPE": "mbanynet", "NUM_CLASSES": 1000, "ACTIVATION_FUN": first["act_model"]}
    return {"MODEL": model, "ANYNET": anynet, "TRAIN": {"IM_SIZE": int(first["train_im_size"])}}
