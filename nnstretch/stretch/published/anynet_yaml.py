"""Reading published NN-Stretch configurations (AnyNet YAML) strictly.

What is not understood is refused by its key.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nnstretch.errors import BadPlan, BrokenFile, UnknownName
from nnstretch.files.strict_yaml import parse_yaml

DEVICES = {"cpu": "cpu", "gpu": "gpu", "dsp": "dsp", "hexagon": "dsp"}
KEYS = frozenset(
    {
        *(
            "STEM_TYPE",
            "STEM_W",
            "STEM_K",
            "BLOCK_TYPE",
            "HEAD_W",
            "DEPTHS",
            "WIDTHS",
            "STRIDES",
            "BOT_MULS",
            "GROUP_WS",
            "KERNELS",
        ),
        *("ORIGINAL_WIDTHS", "SE_ON", "SE_R", "MB_VER", "MB_DOWNSAMPLE", "ACTIVATION_FUN"),
        *("DEVICES", "STEM_DEVICE", "HEAD_DEVICE", "MERGE_DEVICE"),
    }
)
LARGEST = {
    "DEPTHS": 256,
    "WIDTHS": 1 << 16,
    "STRIDES": 8,
    "BOT_MULS": 64,
    "GROUP_WS": 1 << 16,
    "KERNELS": 31,
}
"""A plan beyond these is a typing error, and would only be noticed after minutes of building."""


@dataclass(frozen=True, slots=True)
class AnyNetConfig:
    """A configuration file with every per-branch list written out."""

    where: str
    block: str
    stem: str | None
    """res_stem_in (strided 7x7 and pool) or simple_stem_in (strided 3x3).

    None where the file does not say.
    """
    stem_width: int
    head_width: int
    squeeze: bool
    version: int
    depths: tuple[tuple[int, ...], ...]
    widths: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...]
    inner: tuple[tuple[float, ...], ...]
    group_widths: tuple[tuple[int, ...], ...] | None
    kernels: tuple[int, ...] | None
    merged: tuple[int, ...]
    devices: tuple[str, ...]
    stem_device: str
    head_device: str
    activations: tuple[str, ...]
    image_size: int


def read_config(path: str | Path) -> AnyNetConfig:
    """Read a configuration. Raises UnknownName, BrokenFile or BadPlan that name the key."""
    path = Path(path)
    try:
        data = parse_yaml(path.read_text(encoding="utf-8"), f"configuration {path}")
    except OSError as error:
        raise UnknownName(f"no configuration {path}, {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise BrokenFile(
            f"configuration {path} is no text, byte {error.start}, {error.reason}"
        ) from error
    if not isinstance(data, dict) or not isinstance(data.get("ANYNET"), dict):
        raise BrokenFile(
            f"configuration {path} has no ANYNET section, it is no published NN-Stretch"
            " configuration"
        )
    return AnyNetReader(str(path), data).read()


@dataclass(frozen=True, slots=True)
class AnyNetReader:
    """Access to one file's keys with errors that name them."""

    where: str
    data: dict[str, Any]

    def read(self) -> AnyNetConfig:
        """Read the configuration. Raises BadPlan when a key is wrong."""
        self.refuse_unknown()
        counts = self.branch_counts()
        widths = self.per_branch("WIDTHS", int, counts)
        devices = tuple(self.device(d, "DEVICES") for d in as_list(self.get("DEVICES", ["cpu"])))
        if max(counts) > len(devices):
            many = f"a stage has {max(counts)} branches but DEVICES has {len(devices)}"
            raise BadPlan(f"{many}, {self.file}, a branch would have no processor")
        stem = self.get("STEM_TYPE", None)
        return AnyNetConfig(
            where=self.where,
            block=str(self.get("BLOCK_TYPE", "res_bottleneck_block")),
            stem=None if stem is None else activation_name(stem),
            stem_width=self.number("STEM_W", 64),
            head_width=self.number("HEAD_W", 0),
            squeeze=self.flag("SE_ON", False),
            version=self.version(),
            depths=self.per_branch("DEPTHS", int, counts),
            widths=widths,
            strides=self.per_branch("STRIDES", int, counts),
            inner=self.per_branch("BOT_MULS", float, counts, default=1.0),
            group_widths=(
                None
                if self.get("GROUP_WS", None) is None
                else self.per_branch("GROUP_WS", int, counts)
            ),
            kernels=self.kernels(counts),
            merged=self.read_merge(widths),
            devices=devices,
            stem_device=self.device(self.get("STEM_DEVICE", devices[0]), "STEM_DEVICE"),
            head_device=self.device(self.get("HEAD_DEVICE", devices[0]), "HEAD_DEVICE"),
            activations=self.activations(),
            image_size=self.image_size(),
        )

    @property
    def file(self) -> str:
        """Return the file's name for messages."""
        return f"configuration {self.where}"

    def refuse_unknown(self) -> None:
        """Refuse settings that change the network in ways unknown here. Raises BadPlan."""
        if unknown := sorted(str(key) for key in self.data["ANYNET"] if key not in KEYS):
            raise BadPlan(
                f"unknown key ANYNET.{unknown[0]}, {self.file}, it knows {', '.join(sorted(KEYS))}"
            )
        if not self.flag("MB_DOWNSAMPLE", True):
            raise BadPlan(
                f"MB_DOWNSAMPLE is False, {self.file}, a strided block shared by the branches is"
                " not supported"
            )
        classes = self.section("MODEL").get("NUM_CLASSES", 1000)
        if classes != 1000:
            raise BadPlan(
                f"NUM_CLASSES is {classes!r}, {self.file}, the published networks have 1000"
            )
        if self.flag("SE_ON", False) and self.get("SE_R", 0.25) != 0.25:
            raise BadPlan(
                f"SE_R is {self.get('SE_R', 0.25)!r}, {self.file}, the published networks have 0.25"
            )

    def section(self, name: str) -> dict[str, Any]:
        """Return a section of the file, empty where it is missing."""
        value = self.data.get(name)
        return value if isinstance(value, dict) else {}

    def get(self, key: str, default: Any) -> Any:
        """Return a setting of the model, or its default where it is missing or blank."""
        value = self.data["ANYNET"].get(key)
        return default if value is None else value

    def number(self, key: str, default: int) -> int:
        """Return a whole number. Raises BadPlan when it is not one."""
        value = self.get(key, default)
        if (
            not isinstance(value, int)
            or isinstance(value, bool)
            or not 0 <= value <= LARGEST["WIDTHS"]
        ):
            raise BadPlan(
                f"{key} is {value!r}, {self.file}, it must be a whole number up to"
                f" {LARGEST['WIDTHS']}"
            )
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false. Raises BadPlan when it is neither."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise BadPlan(f"{key} is {value!r}, {self.file}, it must be true or false")
        return value

    def version(self) -> int:
        """Return the version of the block family. Raises BadPlan when it is unknown."""
        value = activation_name(self.get("MB_VER", 2))
        if value not in ("1", "2"):
            raise BadPlan(f"MB_VER is {value}, {self.file}, it is 1 or 2")
        return int(value)

    def image_size(self) -> int:
        """Return the image's side, pixels. Raises BadPlan when it is no positive number."""
        value = self.section("TRAIN").get("IM_SIZE", 224)
        if not isinstance(value, int) or isinstance(value, bool) or not 32 <= value <= 4096:
            raise BadPlan(
                f"TRAIN.IM_SIZE is {value!r}, {self.file}, it must be a whole number of pixels from"
                " 32 to 4096"
            )
        return value

    def device(self, value: Any, key: str) -> str:
        """Return the processor that a device name stands for. Raises BadPlan when it is unknown."""
        if str(value) not in DEVICES:
            raise BadPlan(
                f"{key} names unknown processor {value!r}, {self.file}, it is one of"
                f" {', '.join(DEVICES)}"
            )
        return DEVICES[str(value)]

    def branch_counts(self) -> list[int]:
        """Return branches of every stage: the longest list that any per-branch key has there.

        Raises BadPlan when DEPTHS has no entry per stage.
        """
        stages = [
            self.stages(key)
            for key in ("DEPTHS", "WIDTHS", "STRIDES", "BOT_MULS", "GROUP_WS")
            if self.get(key, None) is not None
        ]
        rows = [row for row in stages if row is not None]
        if self.get("DEPTHS", None) is None or not rows or self.stages("DEPTHS") is None:
            raise BadPlan(
                f"DEPTHS is {self.get('DEPTHS', None)!r}, {self.file}, it must be a list with an"
                " entry per stage"
            )
        length = len(self.stages("DEPTHS") or ())
        return [
            max(len(row[i]) if i < len(row) and isinstance(row[i], list) else 1 for row in rows)
            for i in range(length)
        ]

    def stages(self, key: str) -> list[Any] | None:
        """Return entries of every stage; None for one number that stands for all."""
        value = self.get(key, None)
        return value if isinstance(value, list) and value else None

    def per_branch(
        self, key: str, kind: type, counts: list[int], default: Any = None
    ) -> tuple[tuple[Any, ...], ...]:
        """Return [stage][branch], from one number, a number per stage or a list per branch.

        Raises BadPlan when the value has another number of stages.
        """
        value = self.get(key, default)
        if isinstance(value, (int, float)):
            value = [value] * len(counts)
        if not isinstance(value, list) or not value:
            raise BadPlan(
                f"{key} is {value!r}, {self.file}, it must be a list with an entry per stage"
            )
        if len(value) != len(counts):
            raise BadPlan(
                f"{key} has {len(value)} stages but DEPTHS has {len(counts)}, {self.file}"
            )
        return tuple(
            self.row(key, kind, stage, entry, counts[stage]) for stage, entry in enumerate(value)
        )

    def row(self, key: str, kind: type, stage: int, entry: Any, count: int) -> tuple[Any, ...]:
        """Return one value for each branch of a stage. Raises BadPlan when their count differs."""
        row = tuple(entry) if isinstance(entry, list) else (entry,) * count
        if len(row) != count:
            raise BadPlan(
                f"{key} has {len(row)} branches in stage {stage + 1} but another key has {count},"
                f" {self.file}"
            )
        numbers = all(
            isinstance(v, (int, float)) and not isinstance(v, bool) and 0 < v <= LARGEST[key]
            for v in row
        )
        if not numbers or (kind is int and any(v != int(v) for v in row)):
            what = "whole numbers" if kind is int else "numbers"
            raise BadPlan(
                f"{key} is {list(row)} in stage {stage + 1}, {self.file}, it must be positive"
                f" {what} up to {LARGEST[key]}"
            )
        return tuple(kind(v) for v in row)

    def kernels(self, counts: list[int]) -> tuple[int, ...] | None:
        """Return the kernel size of each stage. Raises BadPlan when branches of a stage differ."""
        if self.get("KERNELS", None) is None:
            return None
        rows = self.per_branch("KERNELS", int, counts)
        for stage, row in enumerate(rows):
            if len(set(row)) > 1:
                raise BadPlan(
                    f"KERNELS is {list(row)} in stage {stage + 1}, {self.file}, its branches must"
                    " have one kernel"
                )
        return tuple(row[0] for row in rows)

    def read_merge(self, widths: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
        """Return the stages whose branches merge. Raises BadPlan when the list does not fit."""
        value = self.get("ORIGINAL_WIDTHS", None)
        if value is None and self.version() == 1 and max(map(len, widths)) > 1:
            raise BadPlan(
                f"ORIGINAL_WIDTHS is missing, {self.file}, MB_VER 1 needs the width that every"
                " stage keeps"
            )
        if value is None:
            return tuple(sum(stage) for stage in widths)
        listed = isinstance(value, list) and len(value) == len(widths)
        if not listed or not all(type(v) is int and 0 < v <= LARGEST["WIDTHS"] for v in value):
            raise BadPlan(
                f"ORIGINAL_WIDTHS is {value!r}, {self.file}, it must have {len(widths)} whole"
                " numbers"
            )
        return tuple(value)

    def activations(self) -> tuple[str, ...]:
        """Return the activation per device; a mark such as `relu(default)` is read as its name."""
        value = (
            self.get("ACTIVATION_FUN", None)
            or self.section("MODEL").get("ACTIVATION_FUN")
            or "relu"
        )
        return tuple(activation_name(v) for v in as_list(value))


def activation_name(value: Any) -> str:
    """Return the name of an activation without its arguments."""
    return str(value).partition("(")[0].strip()


def as_list(value: Any) -> list[Any]:
    """Return a list, or a list of the one value."""
    return value if isinstance(value, list) and value else [value]
