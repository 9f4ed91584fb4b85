"""Reading published NN-Stretch configurations (AnyNet YAML) strictly.

What is not understood is refused by its key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from nnstretch.errors import BadPlan, BrokenFile
from nnstretch.files.decode import decode
from nnstretch.files.limits import BLANK, Length, OneOf, Only, Range
from nnstretch.files.read import as_path, read_text
from nnstretch.files.strict_yaml import parse_yaml

DEVICES = {"cpu": "cpu", "gpu": "gpu", "dsp": "dsp", "hexagon": "dsp"}
UNREAD_KEYS = ("STEM_K", "MERGE_DEVICE")
"""Of section ANYNET: what no network here depends on."""
MAX_WIDTH = 1 << 16
"""A plan beyond this and the limits below is a typing error, only noticed after minutes."""


def activation_name(value: object) -> str:
    """Return the name of an activation without its arguments."""
    return str(value).partition("(")[0].strip()


Number = TypeVar("Number")
PerStage = Annotated[
    tuple[Number | Annotated[tuple[Number, ...], Length(1)], ...],
    Length(1),
]
"""A number for each stage, or for each branch of a stage."""
Whole = Only(float.is_integer, "a whole number")
Depth = Annotated[float, Range(above=0, most=256), Whole]
Width = Annotated[float, Range(above=0, most=MAX_WIDTH), Whole]
Stride = Annotated[float, Range(above=0, most=8), Whole]
InnerFactor = Annotated[float, Range(above=0, most=64)]
KernelSize = Annotated[float, Range(above=0, most=31), Whole]
StemWidth = Annotated[int, Range(0, MAX_WIDTH)]
MergedWidth = Annotated[int, Range(1, MAX_WIDTH)]
Device = Annotated[str, OneOf(tuple(DEVICES))]
Version = (
    Annotated[int, Range(1, 2)]
    | Annotated[str, Only(lambda text: activation_name(text) in ("1", "2"), "1 or 2")]
)
Texts = str | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AnyNetSection:
    """Section ANYNET as the file spells it; one number stands for all stages."""

    DEPTHS: PerStage[Depth]
    WIDTHS: Width | PerStage[Width]
    STRIDES: Stride | PerStage[Stride]
    BOT_MULS: InnerFactor | PerStage[InnerFactor] = 1.0
    GROUP_WS: Width | PerStage[Width] | None = None
    KERNELS: KernelSize | PerStage[KernelSize] | None = None
    ORIGINAL_WIDTHS: tuple[MergedWidth, ...] | None = None
    STEM_TYPE: str | None = None
    STEM_W: StemWidth = 64
    HEAD_W: StemWidth = 0
    BLOCK_TYPE: str = "res_bottleneck_block"
    SE_ON: bool = False
    SE_R: float = 0.25
    MB_VER: Version = 2
    MB_DOWNSAMPLE: bool = True
    ACTIVATION_FUN: Texts = ()
    DEVICES: Device | Annotated[tuple[Device, ...], Length(1)] = "cpu"
    STEM_DEVICE: Device | None = None
    HEAD_DEVICE: Device | None = None

    def __post_init__(self) -> None:
        if not self.MB_DOWNSAMPLE:
            raise ValueError(
                "MB_DOWNSAMPLE is False, a strided block shared by the branches is not supported"
            )
        if self.SE_ON and self.SE_R != 0.25:
            raise ValueError(f"SE_R is {self.SE_R}, the published networks have 0.25")


@dataclass(frozen=True, slots=True)
class ModelSection:
    """What is read of section MODEL."""

    NUM_CLASSES: Annotated[float, Only(lambda count: count == 1000, "1000, as published")] = 1000
    ACTIVATION_FUN: Texts | None = None


@dataclass(frozen=True, slots=True)
class TrainSection:
    """What is read of section TRAIN."""

    IM_SIZE: Annotated[int, Range(32, 4096)] = 224


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
    path = as_path(path, "configuration")
    data = parse_yaml(read_text(path, "configuration"), f"configuration {path}")
    if not isinstance(data, dict) or not isinstance(data.get("ANYNET"), dict):
        raise BrokenFile(
            f"configuration {path} has no ANYNET section, it is no published NN-Stretch"
            " configuration"
        )
    try:
        return decode_config(data, str(path))
    except ValueError as error:
        raise BadPlan(f"configuration {path}, {error}") from None


def decode_config(data: Mapping[str, Any], where: str) -> AnyNetConfig:
    """Decode a configuration; a blank key of ANYNET has its default. Raises ValueError."""
    items = data["ANYNET"].items()
    said = {key: value for key, value in items if value is not BLANK and key not in UNREAD_KEYS}
    anynet: AnyNetSection = decode(AnyNetSection, said, "ANYNET")
    model: ModelSection = decode(ModelSection, known_keys(data, "MODEL", ModelSection), "MODEL")
    train: TrainSection = decode(TrainSection, known_keys(data, "TRAIN", TrainSection), "TRAIN")
    return config_of(anynet, model, train, where)


def config_of(
    anynet: AnyNetSection, model: ModelSection, train: TrainSection, where: str
) -> AnyNetConfig:
    """Write out what a file abbreviates. Raises ValueError where two keys disagree."""
    counts = branch_counts(anynet)
    devices = as_tuple(anynet.DEVICES)
    if max(counts) > len(devices):
        raise ValueError(
            f"a stage has {max(counts)} branches but DEVICES has {len(devices)}, a branch would"
            " have no processor"
        )
    widths = whole_per_branch("WIDTHS", anynet.WIDTHS, counts)
    groups = anynet.GROUP_WS
    version = int(activation_name(anynet.MB_VER))
    activations = anynet.ACTIVATION_FUN or model.ACTIVATION_FUN or "relu"
    return AnyNetConfig(
        where=where,
        block=anynet.BLOCK_TYPE,
        stem=None if anynet.STEM_TYPE is None else activation_name(anynet.STEM_TYPE),
        stem_width=anynet.STEM_W,
        head_width=anynet.HEAD_W,
        squeeze=anynet.SE_ON,
        version=version,
        depths=whole_per_branch("DEPTHS", anynet.DEPTHS, counts),
        widths=widths,
        strides=whole_per_branch("STRIDES", anynet.STRIDES, counts),
        inner=per_branch("BOT_MULS", anynet.BOT_MULS, counts),
        group_widths=None if groups is None else whole_per_branch("GROUP_WS", groups, counts),
        kernels=None if anynet.KERNELS is None else stage_kernels(anynet.KERNELS, counts),
        merged=merged_widths(anynet.ORIGINAL_WIDTHS, version, widths),
        devices=tuple(DEVICES[name] for name in devices),
        stem_device=DEVICES[anynet.STEM_DEVICE or devices[0]],
        head_device=DEVICES[anynet.HEAD_DEVICE or devices[0]],
        activations=tuple(map(activation_name, as_tuple(activations))),
        image_size=train.IM_SIZE,
    )


def known_keys(data: Mapping[str, Any], section: str, kind: type) -> dict[str, Any]:
    """Return the keys of a section that its class knows; the others do not change the network."""
    value = data.get(section)
    known = kind.__annotations__
    return {key: value[key] for key in known if key in value} if isinstance(value, dict) else {}


def as_tuple(value: Texts) -> tuple[str, ...]:
    """Return texts as a tuple, also where the file holds only one."""
    return (value,) if isinstance(value, str) else value


def branch_counts(anynet: AnyNetSection) -> list[int]:
    """Return the branches of every stage: the length of its longest row under any key."""
    rows = (anynet.DEPTHS, anynet.WIDTHS, anynet.STRIDES, anynet.BOT_MULS, anynet.GROUP_WS)
    counts = [1] * len(anynet.DEPTHS)
    for row in rows:
        for stage, entry in enumerate(row if isinstance(row, tuple) else ()):
            if isinstance(entry, tuple) and stage < len(counts):
                counts[stage] = max(counts[stage], len(entry))
    return counts


def per_branch(
    key: str, value: float | PerStage[float], counts: list[int]
) -> tuple[tuple[float, ...], ...]:
    """Return [stage][branch]. Raises ValueError where other keys have more or fewer."""
    entries = value if isinstance(value, tuple) else (value,) * len(counts)
    if len(entries) != len(counts):
        raise ValueError(f"{key} has {len(entries)} stages but DEPTHS has {len(counts)}")
    rows: list[tuple[float, ...]] = []
    for stage, (entry, count) in enumerate(zip(entries, counts, strict=True), 1):
        row = entry if isinstance(entry, tuple) else (entry,) * count
        if len(row) != count:
            raise ValueError(
                f"{key} has {len(row)} branches in stage {stage} but another key has {count}"
            )
        rows.append(row)
    return tuple(rows)


def whole_per_branch(
    key: str, value: float | PerStage[float], counts: list[int]
) -> tuple[tuple[int, ...], ...]:
    """Return whole numbers, [stage][branch]. Raises ValueError as `per_branch` does."""
    return tuple(tuple(map(int, row)) for row in per_branch(key, value, counts))


def stage_kernels(value: float | PerStage[float], counts: list[int]) -> tuple[int, ...]:
    """Return the kernel size of each stage. Raises ValueError when branches of a stage differ."""
    rows = whole_per_branch("KERNELS", value, counts)
    for stage, row in enumerate(rows, 1):
        if len(set(row)) > 1:
            raise ValueError(
                f"KERNELS is {list(row)} in stage {stage}, its branches must have one kernel"
            )
    return tuple(row[0] for row in rows)


def merged_widths(
    said: tuple[int, ...] | None, version: int, widths: tuple[tuple[int, ...], ...]
) -> tuple[int, ...]:
    """Return the channels of each stage after its merge. Raises ValueError unless they fit."""
    if said is None and version == 1 and max(map(len, widths)) > 1:
        raise ValueError(
            "ORIGINAL_WIDTHS is missing, MB_VER 1 needs the width that every stage keeps"
        )
    if said is None:
        return tuple(map(sum, widths))
    if len(said) != len(widths):
        raise ValueError(
            f"ORIGINAL_WIDTHS is {list(said)}, it must have {len(widths)} whole numbers"
        )
    return said
