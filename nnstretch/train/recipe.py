"""A recipe: everything one training run depends on, in one frozen tree.

It is read from YAML, changed by dotted overrides, checked when constructed, and saved resolved
beside every result. Settings live with their owner: a part is handed its own branch of the tree.
(No slots here: jsonargparse reads the defaults of nested dataclasses through `vars`.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_type_hints

import yaml

from nnstretch.errors import BadInput, BrokenFile, UnknownName
from nnstretch.places import shipped

CLASSES = {"digits": 10}
"""Classes of each data set."""


def require(key: str, value: float, low: float, high: float = math.inf) -> None:
    if not low <= value <= high:
        raise BadInput(f"{key} is {value}, it must lie between {low} and {high}")


@dataclass(frozen=True)
class Data:
    """Which images, how they are split, and how far they are moved about."""

    name: Literal["digits"] = "digits"
    """Data set; digits are scikit-learn's 1797 real images of 8x8 pixels."""
    image_px: int = 64
    """Side that images are resized to, bilinearly."""
    batch_images: int = 32
    """Images behind one optimiser step."""
    held_out: float = 0.2
    """Share of images kept for validation, the same share of every class."""
    split_seed: int = 0
    """Which images are held out; apart from `seed`, so that runs of several seeds compare."""
    shift: float = 0.06
    """Largest random shift, as a share of the side."""
    rotate_deg: float = 10.0
    """Largest random rotation."""
    scale: float = 0.1
    """Largest random change of size, as a share."""

    def __post_init__(self) -> None:
        require("data.image_px", self.image_px, 8, 1024)
        require("data.batch_images", self.batch_images, 2, 1024)
        require("data.held_out", self.held_out, 0.05, 0.9)
        require("data.split_seed", self.split_seed, 0, 2**32 - 1)
        require("data.shift", self.shift, 0, 1)
        require("data.rotate_deg", self.rotate_deg, 0, 180)
        require("data.scale", self.scale, 0, 0.9)

    @property
    def classes(self) -> int:
        return CLASSES[self.name]


@dataclass(frozen=True)
class Optimizer:
    """Descent and its learning rate: linear warm-up, then a cosine down to zero."""

    name: Literal["sgd", "adamw"] = "sgd"
    """SGD with Nesterov momentum, or AdamW."""
    lr: float = 0.05
    """Learning rate at its peak."""
    momentum: float = 0.9
    """Of SGD."""
    weight_decay: float = 5e-4
    """On weights of two dimensions and more; biases and norms are left alone."""
    warmup: float = 0.2
    """Share of all steps during which the learning rate rises."""

    def __post_init__(self) -> None:
        require("optimizer.lr", self.lr, 0, 1e3)
        require("optimizer.momentum", self.momentum, 0, 0.999)
        require("optimizer.weight_decay", self.weight_decay, 0, 10)
        require("optimizer.warmup", self.warmup, 0, 0.9)


@dataclass(frozen=True)
class Loss:
    """What is minimised: cross-entropy, mixed with a teacher's opinion where there is one."""

    label_smoothing: float = 0.1
    """Share of probability spread over all classes."""
    distill: float = 0.0
    """Weight of the teacher's term; 0 trains without a teacher."""
    temperature: float = 4.0
    """Softness of teacher and student where they are compared."""

    def __post_init__(self) -> None:
        require("loss.label_smoothing", self.label_smoothing, 0, 0.9)
        require("loss.distill", self.distill, 0, 1)
        require("loss.temperature", self.temperature, 0.1, 100)


@dataclass(frozen=True)
class Trainer:
    """How long, and on how much machine."""

    max_epochs: int = 5
    """Passes over the training images."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Training arithmetic; auto takes bf16 where the processor has matrix units for it. Validation is always fp32."""
    threads: int = 0
    """Threads of one operator; 0 leaves PyTorch's choice, one per core."""

    def __post_init__(self) -> None:
        require("trainer.max_epochs", self.max_epochs, 1)
        require("trainer.threads", self.threads, 0, 1024)


@dataclass(frozen=True)
class Recipe:
    """Everything one training run depends on."""

    model: str = "torchvision:resnet18?num_classes=10"
    """The network where the caller names none: torchvision:NAME, timm:NAME or FILE.py:FACTORY, with ?key=value."""
    seed: int = 0
    """Of batch order, augmentation and dropout."""
    data: Data = field(default_factory=Data)
    optimizer: Optimizer = field(default_factory=Optimizer)
    loss: Loss = field(default_factory=Loss)
    trainer: Trainer = field(default_factory=Trainer)

    def __post_init__(self) -> None:
        require("seed", self.seed, 0, 2**32 - 1)


def settings(kind: type = Recipe, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Dotted key and default of every setting: what an override may name."""
    hints = get_type_hints(kind)
    for entry in fields(kind):
        if is_dataclass(hints[entry.name]):
            yield from settings(hints[entry.name], f"{prefix}{entry.name}.")
        else:
            yield f"{prefix}{entry.name}", entry.default


def load_recipe(path_or_name: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe; `overrides` are `("--trainer.max_epochs", "2")`, or `trainer.max_epochs=2` each.

    Raises UnknownName for no such recipe, BrokenFile for a file that is not YAML, BadInput for a key or value.
    """
    path = locate(path_or_name)
    tree = parse_file(path)
    for group, keys in group_by_prefix().items():
        if group in tree and not isinstance(tree[group], dict):
            raise BadInput(f"recipe {path}, key {group} is {tree[group]!r}, it must hold {', '.join(keys)}")
    parser = make_parser()
    return resolve(parser, f"recipe {path}", lambda: override(parser, parser.parse_object(tree), overrides))


def override(parser: Any, parsed: Any, overrides: Sequence[str]) -> Any:
    words = [word if word.startswith("--") or "=" not in word else f"--{word}" for word in overrides]
    return parser.parse_args(words, namespace=parsed)


def resolve(parser: Any, where: str, parse: Any) -> Recipe:
    """Turn jsonargparse's several complaints into one line that names the culprit."""
    from argparse import ArgumentError

    try:
        return Recipe(**vars(parser.instantiate(parse())))
    except (ArgumentError, ValueError, TypeError, SystemExit) as error:
        raise BadInput(f"{where}, {' '.join(str(error).split())}") from None
    except BadInput as error:
        raise BadInput(f"{where}, {error}") from None


def make_parser() -> Any:
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(exit_on_error=False, prog="recipe")
    parser.add_class_arguments(Recipe)
    return parser


def group_by_prefix() -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for key, _ in settings():
        head, dot, tail = key.partition(".")
        if dot:
            groups.setdefault(head, []).append(tail)
    return groups


def locate(path_or_name: str | Path) -> Path:
    """A path as it is; a bare name among the shipped recipes."""
    path = Path(path_or_name)
    if path.suffix not in (".yaml", ".yml"):
        path = shipped("recipes") / f"{path_or_name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in shipped("recipes").glob("*.yaml")))
        raise UnknownName(f"no recipe {path_or_name}, no file {path}, shipped ones are {known or 'none'}")
    return path


def parse_file(path: Path) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BrokenFile(f"recipe {path}, not YAML, {' '.join(str(error).split())}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise BrokenFile(f"recipe {path}, a {type(tree).__name__} at its top, it must be keys and values")
    return tree


def recipe_yaml(recipe: Recipe) -> str:
    """The resolved recipe as YAML that `load_recipe` reads back to an equal one."""
    return yaml.safe_dump(asdict(recipe), sort_keys=False)
