"""Published NN-Stretch configurations (AnyNet YAML of its pycls fork) -> plans on torchvision and
timm networks.

Keys and rules: MobiSys'23 repository. MB_VER 2 (ResNet, RegNet): branches read the merged tensor
directly and their outputs are concatenated. MB_VER 1 (branched EfficientNets): 1x1 convolution +
batch norm before every branch, and behind it where its width is not its slice of the original's.
A configuration that contradicts itself is refused with the numbers that disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from nnstretch.errors import BadPlan
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.lowering.width_scaling import round_channels
from nnstretch.stretch.published.anynet_yaml import AnyNetConfig, read_config
from nnstretch.structure.cuts import INPUT, OUTPUT


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedNetwork:
    """A published network and where its stages end in the module we stretch."""

    model: str
    block: str
    stem_width: int
    stem_end: str
    head_width: int = 0
    stage_ends: tuple[str, ...]
    strides: tuple[int, ...]
    kernels: tuple[int, ...] = (3,) * 4
    inner: tuple[float, ...] = ()
    """Bottleneck or expansion factor of every stage; empty where blocks have none."""
    group_width: int | None = None
    activation: str = "relu"
    squeeze: bool = False


RESNET_ENDS = ("layer1", "layer2", "layer3", "layer4")
RESNET_STRIDES, REGNET_STRIDES = (1, 2, 2, 2), (2, 2, 2, 2)
EFFICIENTNET_STRIDES = (1, 2, 2, 2, 1, 2, 1)
EFFICIENTNET_KERNELS = (3, 3, 5, 3, 5, 5, 3)
EFFICIENTNET_INNER = (1, 6, 6, 6, 6, 6, 6)
FAMILIES = (
    PublishedNetwork(
        model="torchvision:resnet34",
        block="res_basic_block",
        stem_width=64,
        stem_end="maxpool",
        stage_ends=RESNET_ENDS,
        strides=RESNET_STRIDES,
    ),
    PublishedNetwork(
        model="torchvision:resnet50",
        block="res_bottleneck_block",
        stem_width=64,
        stem_end="maxpool",
        stage_ends=RESNET_ENDS,
        strides=RESNET_STRIDES,
        inner=(0.25,) * 4,
    ),
    PublishedNetwork(
        model="torchvision:regnet_x_1_6gf",
        block="res_bottleneck_block",
        stem_width=32,
        stem_end="stem",
        stage_ends=tuple(f"trunk_output.block{i}" for i in range(1, 5)),
        strides=REGNET_STRIDES,
        inner=(1,) * 4,
        group_width=24,
    ),
    PublishedNetwork(
        model="timm:regnetx_040",
        block="res_bottleneck_block",
        stem_width=32,
        stem_end="stem",
        stage_ends=("s1", "s2", "s3", "s4"),
        strides=REGNET_STRIDES,
        inner=(1,) * 4,
        group_width=40,
    ),
    PublishedNetwork(
        model="timm:efficientnet_lite4",
        block="mbconv",
        stem_width=32,
        stem_end="bn1",
        head_width=1280,
        stage_ends=tuple(f"blocks.{i}" for i in range(7)),
        strides=EFFICIENTNET_STRIDES,
        kernels=EFFICIENTNET_KERNELS,
        inner=EFFICIENTNET_INNER,
        activation="relu6",
    ),
    PublishedNetwork(
        model="torchvision:efficientnet_b5?dropout=0&stochastic_depth_prob=0",
        block="mbconv",
        stem_width=48,
        stem_end="features.0",
        head_width=2048,
        stage_ends=tuple(f"features.{i}" for i in range(1, 8)),
        strides=EFFICIENTNET_STRIDES,
        kernels=EFFICIENTNET_KERNELS,
        inner=EFFICIENTNET_INNER,
        activation="silu",
        squeeze=True,
    ),
)


def match_published_network(config: AnyNetConfig) -> PublishedNetwork:
    """Return the network a configuration stretches, told by its block, stem, head and group width.

    Raises BadPlan when no published network matches.
    """
    finest = min(chain.from_iterable(config.group_widths or ()), default=0)
    for family in FAMILIES:
        if (family.block, family.stem_width, family.head_width) != (
            config.block,
            config.stem_width,
            config.head_width,
        ):
            continue
        if len(config.depths) == len(family.stage_ends) and (
            family.group_width is None or finest % family.group_width == 0
        ):
            return family
    raise BadPlan(
        f"no known network, configuration {config.where}, blocks {config.block}, stem"
        f" {config.stem_width}, head {config.head_width}, {len(config.depths)} stages, group width"
        f" {finest or 'none'}; known are {', '.join(f.model for f in FAMILIES)}"
    )


def check_config(config: AnyNetConfig, family: PublishedNetwork) -> None:
    """Check everything in which a configuration may contradict itself or its network.

    Raises BadPlan when one is there.
    """
    where = f"configuration {config.where}"
    if family.squeeze != config.squeeze:
        raise BadPlan(f"SE_ON is {config.squeeze}, {where}, {family.model} has {family.squeeze}")
    stem = "res_stem_in" if family.stem_end == "maxpool" else "simple_stem_in"
    if config.stem not in (None, stem):
        raise BadPlan(f"STEM_TYPE is {config.stem}, {where}, {family.model} has {stem}")
    for stage in range(len(config.widths)):
        check_stage(config, family, stage, where)
    if config.kernels is not None and config.kernels != family.kernels:
        raise BadPlan(
            f"KERNELS is {list(config.kernels)}, {where}, {family.model} has {list(family.kernels)}"
        )


def check_stage(config: AnyNetConfig, family: PublishedNetwork, stage: int, where: str) -> None:
    """Check a stage against what the block family can express. Raises BadPlan when it cannot."""
    widths, merged, strides = config.widths[stage], config.merged[stage], config.strides[stage]
    at, n = f"stage {stage + 1}", len(widths)
    if config.version == 2 and merged != sum(widths):
        raise BadPlan(
            f"ORIGINAL_WIDTHS is {merged} in {at} but {format_values(widths)}, {where}, channels"
            " would not match"
        )
    if config.version == 1 and merged // n * n != merged:
        raise BadPlan(
            f"ORIGINAL_WIDTHS is {merged} in {at}, {where}, {n} equal slices make {merged // n * n}"
        )
    if set(strides) != {family.strides[stage]}:
        raise BadPlan(
            f"STRIDES is {list(strides)} in {at}, {where}, {family.model} has"
            f" {family.strides[stage]}"
        )
    if not family.inner and set(config.inner[stage]) != {1}:
        factors = ", ".join(f"{factor:g}" for factor in config.inner[stage])
        raise BadPlan(
            f"BOT_MULS is [{factors}] in {at}, {where}, {family.model} has no bottlenecks, 1 would"
            " mean none"
        )


def format_values(widths: tuple[int, ...]) -> str:
    """Return widths and their sum as text."""
    return (
        f"the widths sum to {' + '.join(map(str, widths))} = {sum(widths)}"
        if len(widths) > 1
        else f"the width is {widths[0]}"
    )


def import_plan(config: AnyNetConfig, analysis: NetworkAnalysis, family: PublishedNetwork) -> Plan:
    """Return the plan on `family.model`; cut names as the captured network spells them."""
    check_config(config, family)
    activation = None if config.activations[0] == family.activation else config.activations[0]
    stem_end = analysis.cut(family.stem_end).name
    segments = [Segment(INPUT, stem_end, (Branch(config.stem_device, activation=activation),))]
    before = config.stem_width
    for stage, end in enumerate(family.stage_ends):
        end_name = analysis.cut(end).name
        branches = tuple(
            branch_of(config, family, stage, i, before) for i in range(len(config.depths[stage]))
        )
        segments.append(
            Segment(
                segments[-1].end, end_name, branches, "project" if config.version == 1 else "concat"
            )
        )
        before = config.merged[stage]
    segments.append(
        Segment(segments[-1].end, OUTPUT, (Branch(config.head_device, activation=activation),))
    )
    return Plan(family.model, (1, 3, 224, 224), tuple(segments))


def branch_of(
    config: AnyNetConfig, family: PublishedNetwork, stage: int, i: int, before: int
) -> Branch:
    """Return branch i of a stage."""
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
        width_in=round_channels(width / merged * before) if glue else None,
        width_out=merged // n if glue else None,
    )


def other_group_width(
    config: AnyNetConfig, family: PublishedNetwork, stage: int, i: int
) -> int | None:
    """Return the group width where it is not the network's own.

    Raises BadPlan where blocks have no groups, or when it does not divide the channels.
    """
    if config.group_widths is None:
        return None
    width_given = config.group_widths[stage][i]
    bottleneck = round(config.widths[stage][i] * config.inner[stage][i])
    at = f"stage {stage + 1}, configuration {config.where}"
    if family.group_width is None:
        if width_given != bottleneck:
            raise BadPlan(
                f"GROUP_WS is {width_given} in {at}, {family.model} has no groups, {bottleneck}"
                " would mean none"
            )
        return None
    if bottleneck % width_given:
        raise BadPlan(
            f"GROUP_WS is {width_given} in {at}, it does not divide the bottleneck's {bottleneck}"
            " channels"
        )
    return None if width_given == family.group_width else width_given


__all__ = [
    "FAMILIES",
    "AnyNetConfig",
    "PublishedNetwork",
    "check_config",
    "import_plan",
    "match_published_network",
    "read_config",
]
