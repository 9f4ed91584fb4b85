"""A recipe: everything one training run depends on, in one frozen tree.

It is read from YAML, changed by dotted overrides, checked when constructed, and saved resolved
beside every result. The text below a setting is what `nnstretch train --help` says of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from nnstretch.errors import BadInput
from nnstretch.files.decode import check_fields
from nnstretch.files.limits import Range, shorten

DATASET_NAMES = ("digits", "shapes", "folder", "cifar10", "cifar100", "shards")


@dataclass(frozen=True, slots=True)
class DatasetName:
    """A data set that the package opens, or `FILE.py:FUNCTION` of the user's own."""

    def defect(self, value: str, name: str) -> str | None:
        """Return why a text names no data set, or None."""
        if value in DATASET_NAMES or ".py:" in value:
            return None
        known = ", ".join(DATASET_NAMES)
        return f"unknown {name} {shorten(value)}, it is one of {known} or FILE.py:FUNCTION"


def check_settings(section: str, settings: object) -> None:
    """Check settings against their annotations, as a file's are. Raises BadInput."""
    try:
        check_fields(settings, section)
    except ValueError as error:
        raise BadInput(str(error)) from None


@dataclass(frozen=True, slots=True)
class DataSettings:
    """Training and held-out images, and how they are read."""

    name: Annotated[str, DatasetName()] = "digits"
    """Data set: scikit-learn's digits, drawn shapes, a folder of images, CIFAR, litData shards, or
    FILE.py:FUNCTION, which takes these settings and returns a Dataset of your own."""
    root: str = ""
    """Folder of the data set; `folder`: train/CLASS/*.jpg and val/CLASS/*.jpg, or CLASS/*.jpg."""
    image_px: Annotated[int, Range(8, 1024)] = 64
    """Side of training images."""
    val_px: Annotated[int, Range(0, 1024)] = 0
    """Side of held-out images; 0 is image_px."""
    val_resize_px: Annotated[int, Range(0, 2048)] = 0
    """Shorter side to which held-out images are resized before the middle is taken; 0 is val_px."""
    batch_images: Annotated[int, Range(2, 65536)] = 32
    """Images of one optimizer step, over all processes and micro-batches."""
    held_out: Annotated[float, Range(0.05, 0.9)] = 0.2
    """Share of every class held out for validation where the data set has no validation part."""
    split_seed: Annotated[int, Range(0, 2**32 - 1)] = 0
    """Seed of the choice of held-out images, and of drawn ones; apart from `seed` of the run."""
    images_per_class: Annotated[int, Range(2, 100_000)] = 80
    """Training images of `shapes`; half as many are held out."""
    corrupt: Literal["refuse", "skip"] = "refuse"
    """What an unreadable image does: end the training, or be named and replaced by the next."""
    workers: Annotated[int, Range(0, 256)] = 0
    """Processes that decode and augment; 0 does so between steps."""
    download: bool = False
    """Fetch CIFAR where it is missing."""

    def __post_init__(self) -> None:
        check_settings("data.", self)
        if self.val_resize_px and self.val_resize_px < self.validation_px:
            raise BadInput(
                f"data.val_resize_px is {self.val_resize_px}, it must be at least the"
                f" {self.validation_px} that are cut from it"
            )

    @property
    def validation_px(self) -> int:
        """Return the side of held-out images as the network sees them."""
        return self.val_px or self.image_px


@dataclass(frozen=True, slots=True)
class AugmentSettings:
    """Random changes of training images."""

    shift: Annotated[float, Range(0, 1)] = 0.0
    """Largest random shift of a batch's images, as a share of the side."""
    rotate_deg: Annotated[float, Range(0, 180)] = 0.0
    """Largest random rotation."""
    scale: Annotated[float, Range(0, 0.9)] = 0.0
    """Largest random change of size, as a share."""
    crop_scale: Annotated[float, Range(0.01, 1)] = 1.0
    """Smallest share of the area of a random crop of aspect 3:4 to 4:3; 1 crops the middle."""
    pad: Annotated[float, Range(0, 1)] = 0.0
    """Black border before a random crop, as a share of the side; CIFAR's usual is 0.125."""
    flip: Annotated[float, Range(0, 1)] = 0.0
    """Share of images mirrored left to right."""
    randaugment: Annotated[int, Range(0, 8)] = 0
    """RandAugment: operations on each image."""
    randaugment_magnitude: Annotated[int, Range(0, 30)] = 9
    """RandAugment: strength of its operations, 0 to 30."""
    mixup: Annotated[float, Range(0, 100)] = 0.0
    """Mixup: alpha of its Beta distribution; 0 mixes nothing."""
    cutmix: Annotated[float, Range(0, 100)] = 0.0
    """CutMix: alpha of its Beta distribution; with mixup, each batch takes one at even odds."""

    def __post_init__(self) -> None:
        check_settings("augment.", self)
        if self.pad > 0 and self.crop_scale < 1:
            raise BadInput(
                f"augment.pad is {self.pad} and augment.crop_scale {self.crop_scale}, an image is"
                " cropped in one way, set one off"
            )


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """Optimizer and its learning rate: linear warm-up, then a cosine down to zero."""

    name: Literal["sgd", "adamw", "lamb"] = "sgd"
    """SGD with Nesterov momentum, AdamW, or LAMB for large batches."""
    lr: Annotated[float, Range(0, 1e3)] = 0.05
    """Peak learning rate."""
    momentum: Annotated[float, Range(0, 0.999)] = 0.9
    """Momentum of SGD."""
    weight_decay: Annotated[float, Range(0, 10)] = 5e-4
    """Decay of weights of two dimensions and more."""
    decay_all: bool = False
    """Whether biases and norms decay, too, as in the published recipes."""
    warmup: Annotated[float, Range(0, 0.9)] = 0.2
    """Share of all steps during which the learning rate rises."""
    clip_norm: Annotated[float, Range(0, 1e6)] = 0.0
    """Largest L2 norm of the gradient over all weights; 0 does not clip."""

    def __post_init__(self) -> None:
        check_settings("optimizer.", self)


@dataclass(frozen=True, slots=True)
class LossSettings:
    """The loss on labels, mixed with a teacher's scores (distillation)."""

    kind: Literal["softmax", "binary"] = "softmax"
    """Cross-entropy over the classes, or binary cross-entropy of each class."""
    label_smoothing: Annotated[float, Range(0, 0.9)] = 0.1
    """Share of probability spread over all classes."""
    distill: Annotated[float, Range(0, 1)] = 0.0
    """Weight of the teacher's scores; 0 trains without a teacher."""
    temperature: Annotated[float, Range(0.1, 100)] = 4.0
    """Temperature of teacher and student in distillation."""
    features: Annotated[float, Range(0, 1000)] = 0.0
    """Weight of the distance from the original's features at the meeting points."""

    def __post_init__(self) -> None:
        check_settings("loss.", self)

    @property
    def has_teacher(self) -> bool:
        """Return whether the loss needs a teacher."""
        return self.distill > 0 or self.features > 0


@dataclass(frozen=True, slots=True)
class BranchedSettings:
    """Starting weights of a branched network, and drop-out of its branches."""

    inherit: Literal["none", "weights", "rescaled"] = "weights"
    """Start at random, from the original's weights, or from these fitted to its merged features."""
    calibration_images: Annotated[int, Range(2, 1_000_000)] = 512
    """Training images by which `rescaled` fits features."""
    drop: Annotated[float, Range(0, 0.9)] = 0.0
    """Chance that a branch is left out for an image; never all branches of a segment."""

    def __post_init__(self) -> None:
        check_settings("branched.", self)


@dataclass(frozen=True, slots=True)
class AverageSettings:
    """A running average of the weights (EMA), which is then validated and saved."""

    decay: Annotated[float, Range(0, 0.999999)] = 0.0
    """Share that the n-th update keeps, at most (1 + n) / (10 + n); 0 keeps no average."""
    every_steps: Annotated[int, Range(1, 1_000_000)] = 1
    """Steps between updates."""

    def __post_init__(self) -> None:
        check_settings("average.", self)


@dataclass(frozen=True, slots=True)
class TrainerSettings:
    """Length of the training, and the machine it runs on."""

    max_epochs: Annotated[int, Range(1)] = 5
    """Passes over the training images."""
    patience_epochs: Annotated[int, Range(0)] = 0
    """Stop after so many epochs without a better held-out accuracy; 0 never stops early."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Training arithmetic; auto is bf16 where matrix units compute it. Validation is fp32."""
    threads: Annotated[int, Range(0, 1024)] = 0
    """Threads of one operator; 0 leaves PyTorch's choice, one per core."""
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    """Device; auto takes CUDA where there is a card."""
    devices: Annotated[int, Range(0, 1024)] = 1
    """Processes on each machine, one per card; 0 takes every card."""
    nodes: Annotated[int, Range(1, 65536)] = 1
    """Machines; torchrun and SLURM are recognised."""
    sync_norms: bool = True
    """Whether batch norms see the images of all processes."""
    micro_batches: Annotated[int, Range(1, 65536)] = 1
    """Parts in which each process computes its share of a batch, to save memory."""
    channels_last: bool = True
    """Whether images and kernels lie in memory as NHWC.

    Not on a CPU if a strided 1x1 convolution reads fewer than 8 channels: PyTorch fails there.
    """
    compile: bool = False
    """Whether torch.compile is used."""
    deterministic: bool = False
    """Refuse operators whose result may differ from run to run (CUDA has some)."""
    precise_norm_images: Annotated[int, Range(0)] = 0
    """Training images for batch norm statistics before each validation; 0 keeps running ones.

    In whole batches of 64, the rest is left out: 127 are 64; fewer than 64 are one batch. Norms
    that the network keeps in evaluation mode while it trains keep theirs.
    """
    save_every_steps: Annotated[int, Range(0)] = 0
    """Steps between saves within an epoch; 0 saves at the end of each epoch only."""
    tensorboard: bool = True
    """Keep curves in the folder's `logs`, where the tensorboard package is installed."""

    def __post_init__(self) -> None:
        check_settings("trainer.", self)
        if self.precise_norm_images == 1:
            raise BadInput(
                "trainer.precise_norm_images is 1, one image has no variance, take 2 or more"
            )


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything one training run depends on."""

    model: str = "torchvision:resnet18?num_classes=10"
    """The network: torchvision:NAME, timm:NAME or FILE.py:FACTORY, with ?key=value."""
    seed: Annotated[int, Range(0, 2**32 - 1)] = 0
    """Seed of batch order, augmentation, drop-out, and of starting weights."""
    data: DataSettings = field(default_factory=DataSettings)
    augment: AugmentSettings = field(default_factory=AugmentSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    loss: LossSettings = field(default_factory=LossSettings)
    branched: BranchedSettings = field(default_factory=BranchedSettings)
    average: AverageSettings = field(default_factory=AverageSettings)
    trainer: TrainerSettings = field(default_factory=TrainerSettings)
    start: Literal["own", "he", "zero_residual"] = "own"
    """Starting weights where none are given.

    own: as the network's code draws them; he: He et al. 2015; zero_residual: he, with the last
    scale of every residual path at 0 (Goyal et al. 2017).
    """

    def __post_init__(self) -> None:
        check_settings("", self)
        if self.loss.kind == "binary" and self.loss.distill > 0:
            raise BadInput(
                "loss.kind is binary and loss.distill is above 0, a teacher's opinion is over the"
                " classes, take softmax"
            )
        if self.trainer.compile and self.loss.features > 0:
            raise BadInput(
                f"trainer.compile is true and loss.features {self.loss.features}, a compiled"
                " network shows no meeting points, set one off"
            )
        if self.data.batch_images % self.trainer.micro_batches:
            raise BadInput(
                f"trainer.micro_batches is {self.trainer.micro_batches}, data.batch_images"
                f" {self.data.batch_images} does not divide"
            )
