"""Published NN-Stretch configurations (AnyNet YAML of its pycls fork) -> plans on torchvision and timm networks.

Keys and rules: MobiSys'23 repository. MB_VER 2 (ResNet, RegNet): branches read the merged tensor
directly and their outputs are concatenated. MB_VER 1 (branched EfficientNets): 1x1 convolution +
batch norm before every branch, and behind it where its width is not its slice of the original's.
A configuration that contradicts itself is refused with the numbers that disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from nnstretch.errors import BadPlan, BrokenFile, UnknownName
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch.lower import Stretcher
from nnstretch.stretch.scales import round_to_granule
from nnstretch.structure.cuts import INPUT, OUTPUT


@dataclass(frozen=True, slots=True)
class Family:
    """A published network and where its stages end in the module we stretch."""

    model: str
    block: str
    stem_width: int
    head_width: int
    stem_end: str
    stage_ends: tuple[str, ...]
    strides: tuple[int, ...]
    kernels: tuple[int, ...]
    inner: tuple[float, ...]
    """Bottleneck or expansion factor of every stage; empty where blocks have none."""
    group_width: int | None
    activation: str
    squeeze: bool = False


EN_STRIDES, EN_KERNELS, EN_INNER = (1, 2, 2, 2, 1, 2, 1), (3, 3, 5, 3, 5, 5, 3), (1, 6, 6, 6, 6, 6, 6)
LAYERS = ("layer1", "layer2", "layer3", "layer4")
FAMILIES = (
    Family("torchvision:resnet34", "res_basic_block", 64, 0, "maxpool", LAYERS, (1, 2, 2, 2), (), (), None, "relu"),
    Family("torchvision:resnet50", "res_bottleneck_block", 64, 0, "maxpool", LAYERS, (1, 2, 2, 2), (), (0.25,) * 4, None, "relu"),
    Family(
        "torchvision:regnet_x_1_6gf", "res_bottleneck_block", 32, 0, "stem",
        tuple(f"trunk_output.block{i}" for i in range(1, 5)), (2, 2, 2, 2), (), (1,) * 4, 24, "relu",
    ),
    Family("timm:regnetx_040", "res_bottleneck_block", 32, 0, "stem", ("s1", "s2", "s3", "s4"), (2, 2, 2, 2), (), (1,) * 4, 40, "relu"),
    Family(
        "timm:efficientnet_lite4", "mbconv", 32, 1280, "bn1",
        tuple(f"blocks.{i}" for i in range(7)), EN_STRIDES, EN_KERNELS, EN_INNER, None, "relu6",
    ),
    Family(
        "torchvision:efficientnet_b5", "mbconv", 48, 2048, "features.0",
        tuple(f"features.{i}" for i in range(1, 8)), EN_STRIDES, EN_KERNELS, EN_INNER, None, "silu", squeeze=True,
    ),
)  # fmt: skip
DEVICES = {"cpu": "cpu", "gpu": "gpu", "dsp": "dsp", "hexagon": "dsp"}


@dataclass(frozen=True, slots=True)
class Config:
    """A configuration file with every per-branch list written out."""

    where: str
    block: str
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


def read_config(path: str | Path) -> Config:
    """Raises UnknownName, BrokenFile or BadPlan that name the key."""
    path = Path(path)
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnknownName(f"no configuration {path}, {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        raise BrokenFile(f"configuration {path} is no YAML, line {mark.line + 1 if mark else '?'}, {getattr(error, 'problem', error)}") from error
    if not isinstance(data, dict) or not isinstance(data.get("ANYNET"), dict):
        raise BrokenFile(f"configuration {path} has no ANYNET section, it is no published NN-Stretch configuration")
    return Reading(str(path), data).config()


@dataclass(frozen=True, slots=True)
class Reading:
    """Access to one file's keys with errors that name them."""

    where: str
    data: dict[str, Any]

    def config(self) -> Config:
        depths = self.per_branch("DEPTHS", int)
        counts = [len(stage) for stage in depths]
        widths = self.per_branch("WIDTHS", int, counts)
        devices = tuple(self.device(d, "DEVICES") for d in as_list(self.get("DEVICES", ["cpu"])))
        if max(counts) > len(devices):
            raise BadPlan(f"a stage has {max(counts)} branches but DEVICES has {len(devices)}, configuration {self.where}, a branch would have no processor")
        groups = self.get("GROUP_WS", None)
        return Config(
            where=self.where,
            block=str(self.get("BLOCK_TYPE", "res_bottleneck_block")),
            stem_width=self.number("STEM_W", 64),
            head_width=self.number("HEAD_W", 0),
            squeeze=bool(self.get("SE_ON", False)),
            version=int(str(self.get("MB_VER", 2)).partition("(")[0]),
            depths=depths,
            widths=widths,
            strides=self.per_branch("STRIDES", int, counts),
            inner=self.per_branch("BOT_MULS", float, counts, default=1.0),
            group_widths=None if groups is None else self.per_branch("GROUP_WS", int, counts),
            kernels=None if self.get("KERNELS", None) is None else tuple(int(k) for k in as_list(self.get("KERNELS", None))),
            merged=self.merged(widths),
            devices=devices,
            stem_device=self.device(self.get("STEM_DEVICE", devices[0]), "STEM_DEVICE"),
            head_device=self.device(self.get("HEAD_DEVICE", devices[0]), "HEAD_DEVICE"),
            activations=self.activations(),
            image_size=int((self.data.get("TRAIN") or {}).get("IM_SIZE", 224)),
        )

    def get(self, key: str, default: Any) -> Any:
        return self.data["ANYNET"].get(key, default)

    def number(self, key: str, default: int) -> int:
        value = self.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise BadPlan(f"{key} is {value!r}, configuration {self.where}, it must be a whole number")
        return value

    def device(self, value: Any, key: str) -> str:
        if str(value) not in DEVICES:
            raise BadPlan(f"{key} names unknown processor {value!r}, configuration {self.where}, it is one of {', '.join(DEVICES)}")
        return DEVICES[str(value)]

    def per_branch(self, key: str, kind: type, counts: list[int] | None = None, default: Any = None) -> tuple[tuple[Any, ...], ...]:
        """[stage][branch], from a value per stage or a list per branch."""
        value = self.get(key, None)
        if value is None and default is not None and counts:
            return tuple((default,) * n for n in counts)
        if not isinstance(value, list) or not value:
            raise BadPlan(f"{key} is {value!r}, configuration {self.where}, it must be a list with an entry per stage")
        if counts is not None and len(value) != len(counts):
            raise BadPlan(f"{key} has {len(value)} stages but DEPTHS has {len(counts)}, configuration {self.where}")
        rows: list[tuple[Any, ...]] = []
        for stage, entry in enumerate(value):
            wanted = counts[stage] if counts else None
            row = tuple(entry) if isinstance(entry, list) else (entry,) * (wanted or 1)
            if wanted is not None and len(row) != wanted:
                raise BadPlan(f"{key} has {len(row)} branches in stage {stage + 1} but DEPTHS has {wanted}, configuration {self.where}")
            if not all(isinstance(v, (int, float)) and not isinstance(v, bool) and v > 0 for v in row):
                raise BadPlan(f"{key} is {list(row)} in stage {stage + 1}, configuration {self.where}, it must be positive numbers")
            rows.append(tuple(kind(v) for v in row))
        return tuple(rows)

    def merged(self, widths: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
        value = self.get("ORIGINAL_WIDTHS", None)
        if value is None:
            return tuple(sum(stage) for stage in widths)
        if not isinstance(value, list) or len(value) != len(widths) or not all(isinstance(v, int) for v in value):
            raise BadPlan(f"ORIGINAL_WIDTHS is {value!r}, configuration {self.where}, it must have {len(widths)} whole numbers")
        return tuple(value)

    def activations(self) -> tuple[str, ...]:
        """Per device; a mark such as `relu(default)` is read as its name."""
        value = self.get("ACTIVATION_FUN", None) or (self.data.get("MODEL") or {}).get("ACTIVATION_FUN", "relu")
        return tuple(str(v).partition("(")[0] for v in as_list(value))


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def family_of(config: Config) -> Family:
    """The network a configuration stretches, told by its block, stem, head and group width."""
    finest = min((w for stage in config.group_widths for w in stage), default=0) if config.group_widths else 0
    for family in FAMILIES:
        if (family.block, family.stem_width, family.head_width) != (config.block, config.stem_width, config.head_width):
            continue
        if len(config.depths) == len(family.stage_ends) and (family.group_width is None or finest % family.group_width == 0):
            return family
    raise BadPlan(
        f"no known network, configuration {config.where}, blocks {config.block}, stem {config.stem_width}, head {config.head_width}, "
        f"{len(config.depths)} stages, group width {finest or 'none'}; known are {', '.join(f.model for f in FAMILIES)}"
    )


def check(config: Config, family: Family) -> None:
    """Everything in which a configuration may contradict itself or its network."""
    if family.squeeze != config.squeeze:
        raise BadPlan(f"SE_ON is {config.squeeze}, configuration {config.where}, {family.model} has {family.squeeze}")
    if config.version not in (1, 2):
        raise BadPlan(f"MB_VER is {config.version}, configuration {config.where}, it is 1 or 2")
    for stage, widths in enumerate(config.widths):
        if config.version == 2 and config.merged[stage] != sum(widths):
            raise BadPlan(f"ORIGINAL_WIDTHS is {config.merged[stage]} in stage {stage + 1} but {spelt(widths)}, configuration {config.where}, channels would not match")
        n = len(widths)
        if config.version == 1 and config.merged[stage] // n * n != config.merged[stage]:
            raise BadPlan(f"ORIGINAL_WIDTHS is {config.merged[stage]} in stage {stage + 1}, configuration {config.where}, {n} equal slices make {config.merged[stage] // n * n}")
        if set(config.strides[stage]) != {family.strides[stage]}:
            raise BadPlan(f"STRIDES is {list(config.strides[stage])} in stage {stage + 1}, configuration {config.where}, {family.model} has {family.strides[stage]}")
    if family.kernels and config.kernels is not None and config.kernels != family.kernels:
        raise BadPlan(f"KERNELS is {list(config.kernels)}, configuration {config.where}, {family.model} has {list(family.kernels)}")


def spelt(widths: tuple[int, ...]) -> str:
    return f"the widths sum to {' + '.join(map(str, widths))} = {sum(widths)}" if len(widths) > 1 else f"the width is {widths[0]}"


def import_plan(config: Config, stretcher: Stretcher, family: Family, batch: int = 1, image_size: int = 224) -> Plan:
    """The plan on `family.model`; cut names as the captured network spells them."""
    check(config, family)
    activation = None if config.activations[0] == family.activation else config.activations[0]
    stem_end = stretcher.cut(family.stem_end).name
    segments = [Segment(INPUT, stem_end, (Branch(config.stem_device, activation=activation),))]
    before = config.stem_width
    for stage, end in enumerate(family.stage_ends):
        end_name = stretcher.cut(end).name
        branches = tuple(branch_of(config, family, stage, i, before) for i in range(len(config.depths[stage])))
        segments.append(Segment(segments[-1].end, end_name, branches, "project" if config.version == 1 else "concat"))
        before = config.merged[stage]
    segments.append(Segment(segments[-1].end, OUTPUT, (Branch(config.head_device, activation=activation),)))
    return Plan(family.model, (batch, 3, image_size, image_size), tuple(segments))


def branch_of(config: Config, family: Family, stage: int, i: int, before: int) -> Branch:
    width, merged, n = config.widths[stage][i], config.merged[stage], len(config.widths[stage])
    act = config.activations[i] if len(config.activations) > i else config.activations[0]
    inner = config.inner[stage][i]
    glue = config.version == 1
    return Branch(
        processor=config.devices[i],
        depth=config.depths[stage][i],
        width=width,
        inner_ratio=inner if family.inner and inner != family.inner[stage] else None,
        group_width=other_group_width(config, family, stage, i),
        activation=None if act == family.activation else act,
        width_in=round_to_granule(width / merged * before) if glue else None,
        width_out=merged // n if glue else None,
    )


def other_group_width(config: Config, family: Family, stage: int, i: int) -> int | None:
    """The group width where it is not the network's own; refused where blocks have no groups to widen."""
    if config.group_widths is None or config.block == "res_basic_block":
        return None
    given = config.group_widths[stage][i]
    bottleneck = round(config.widths[stage][i] * config.inner[stage][i])
    if family.group_width is None:
        if given != bottleneck:
            raise BadPlan(f"GROUP_WS is {given} in stage {stage + 1}, configuration {config.where}, {family.model} has no groups, {bottleneck} would mean none")
        return None
    if bottleneck % given:
        raise BadPlan(f"GROUP_WS is {given} in stage {stage + 1}, configuration {config.where}, it does not divide the bottleneck's {bottleneck} channels")
    return None if given == family.group_width else given
