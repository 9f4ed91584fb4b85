"""A recipe: everything one training run depends on, in one frozen tree.

It is read from YAML, changed by dotted overrides, checked when constructed, and saved resolved
beside every result. Settings live with their owner: a part is handed its own branch of the tree.
(No slots here: jsonargparse reads the defaults of nested dataclasses through `vars`.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from nnstretch.errors import BadInput


def require_range(key: str, value: float, low: float, high: float = math.inf) -> None:
    """Check a number. Raises BadInput when it lies outside its range."""
    if not low <= value <= high:
        raise BadInput(f"{key} is {value}, it must lie between {low} and {high}")


@dataclass(frozen=True)
class DataSettings:
    """Which images, how they are split, and how they reach the network."""

    name: Literal["digits", "shapes", "folder", "cifar10", "cifar100", "shards"] = "digits"
    """Data set: scikit-learn's 1797 real digits; textured shapes that are drawn.

    A folder of images; CIFAR; litData shards.
    """
    root: str = ""
    """Folder of `folder` (train/CLASS/*.jpg and val/CLASS/*.jpg, or CLASS/*.jpg), `cifar10`,
    `cifar100` and `shards`.
    """
    image_px: int = 64
    """Side of training images."""
    val_px: int = 0
    """Side of held-out images; 0 is image_px."""
    val_resize_px: int = 0
    """Held-out images are resized to this shorter side, then the middle is taken.

    0 is val_px, which takes all of a square image.
    """
    batch_images: int = 32
    """Images behind one optimiser step, over all processes and micro-batches."""
    held_out: float = 0.2
    """Share of images kept for validation where the data set has no validation part, the same share
    of every class.
    """
    split_seed: int = 0
    """Which images are held out, or drawn.

    Apart from `seed`, so that runs of several seeds compare.
    """
    images_per_class: int = 80
    """Training images of `shapes`; half as many are held out."""
    corrupt: Literal["refuse", "skip"] = "refuse"
    """An image that cannot be decoded ends the training, or the next one takes its place and its
    name is printed.
    """
    workers: int = 0
    """Processes that decode and augment; 0 does it between steps."""
    download: bool = False
    """Fetch CIFAR where it is missing."""

    def __post_init__(self) -> None:
        require_range("data.image_px", self.image_px, 8, 1024)
        require_range("data.val_px", self.val_px, 0, 1024)
        require_range("data.val_resize_px", self.val_resize_px, 0, 2048)
        require_range("data.batch_images", self.batch_images, 2, 65536)
        require_range("data.held_out", self.held_out, 0.05, 0.9)
        require_range("data.split_seed", self.split_seed, 0, 2**32 - 1)
        require_range("data.images_per_class", self.images_per_class, 2, 100_000)
        require_range("data.workers", self.workers, 0, 256)
        if self.val_resize_px and self.val_resize_px < self.validation_px:
            raise BadInput(
                f"data.val_resize_px is {self.val_resize_px}, it must be at least the"
                f" {self.validation_px} that are cut from it"
            )

    @property
    def validation_px(self) -> int:
        """Return side of held-out images as the network sees them."""
        return self.val_px or self.image_px


@dataclass(frozen=True)
class AugmentSettings:
    """How far training images are moved about, and mixed."""

    shift: float = 0.0
    """Largest random shift of a batch's images, as a share of the side."""
    rotate_deg: float = 0.0
    """Largest random rotation."""
    scale: float = 0.0
    """Largest random change of size, as a share."""
    crop_scale: float = 1.0
    """Smallest share of an image's area that a random crop takes, at a random aspect of 3:4 to 4:3.

    1 takes the middle square.
    """
    pad: float = 0.0
    """A black border of this share of the side is added before a random crop of the side.

    CIFAR's usual is 0.125.
    """
    flip: float = 0.0
    """Share of images mirrored left to right."""
    randaugment: int = 0
    """RandAugment: how many of its operations each image goes through."""
    randaugment_magnitude: int = 9
    """How strong they are, 0 to 30."""
    mixup: float = 0.0
    """Mixup: the alpha of its Beta distribution; 0 mixes nothing."""
    cutmix: float = 0.0
    """CutMix: likewise; where both are on, each batch takes one of them at even odds."""

    def __post_init__(self) -> None:
        require_range("augment.shift", self.shift, 0, 1)
        require_range("augment.rotate_deg", self.rotate_deg, 0, 180)
        require_range("augment.scale", self.scale, 0, 0.9)
        require_range("augment.crop_scale", self.crop_scale, 0.01, 1)
        require_range("augment.pad", self.pad, 0, 1)
        require_range("augment.flip", self.flip, 0, 1)
        require_range("augment.randaugment", self.randaugment, 0, 8)
        require_range("augment.randaugment_magnitude", self.randaugment_magnitude, 0, 30)
        require_range("augment.mixup", self.mixup, 0, 100)
        require_range("augment.cutmix", self.cutmix, 0, 100)
        if self.pad > 0 and self.crop_scale < 1:
            raise BadInput(
                f"augment.pad is {self.pad} and augment.crop_scale {self.crop_scale}, an image is"
                " cropped in one way, set one off"
            )


@dataclass(frozen=True)
class OptimizerSettings:
    """Descent and its learning rate: linear warm-up, then a cosine down to zero."""

    name: Literal["sgd", "adamw", "lamb"] = "sgd"
    """SGD with Nesterov momentum, AdamW, or LAMB for large batches."""
    lr: float = 0.05
    """Learning rate at its peak."""
    momentum: float = 0.9
    """Of SGD."""
    weight_decay: float = 5e-4
    """On weights of two dimensions and more."""
    decay_all: bool = False
    """Decay biases and norms, too, as the published recipes do."""
    warmup: float = 0.2
    """Share of all steps during which the learning rate rises."""
    clip_norm: float = 0.0
    """Longest gradient, by its L2 norm over all weights; 0 leaves it as it is."""

    def __post_init__(self) -> None:
        require_range("optimizer.lr", self.lr, 0, 1e3)
        require_range("optimizer.momentum", self.momentum, 0, 0.999)
        require_range("optimizer.weight_decay", self.weight_decay, 0, 10)
        require_range("optimizer.warmup", self.warmup, 0, 0.9)
        require_range("optimizer.clip_norm", self.clip_norm, 0, 1e6)


@dataclass(frozen=True)
class LossSettings:
    """What is minimised: the labels' loss, mixed with a teacher's opinion where there is one."""

    kind: Literal["softmax", "binary"] = "softmax"
    """Cross-entropy over the classes, or binary cross-entropy of each class (RSB)."""
    label_smoothing: float = 0.1
    """Share of probability spread over all classes."""
    distill: float = 0.0
    """Weight of the teacher's opinion; 0 trains without one."""
    temperature: float = 4.0
    """Softness of teacher and student where they are compared."""
    features: float = 0.0
    """Weight of the distance between the branched network's and the original's tensors at the
    meeting points.
    """

    def __post_init__(self) -> None:
        require_range("loss.label_smoothing", self.label_smoothing, 0, 0.9)
        require_range("loss.distill", self.distill, 0, 1)
        require_range("loss.temperature", self.temperature, 0.1, 100)
        require_range("loss.features", self.features, 0, 1000)

    @property
    def has_teacher(self) -> bool:
        """Return whether the loss needs a teacher."""
        return self.distill > 0 or self.features > 0


@dataclass(frozen=True)
class BranchedSettings:
    """How a branched network begins, and how its branches are kept from leaning on each other."""

    inherit: Literal["none", "weights", "rescaled"] = "weights"
    """Start at random, from the original's weights, or from these with the merged features brought
    close to the original's.
    """
    calibration_images: int = 512
    """Training images by which `rescaled` does so."""
    drop: float = 0.0
    """Chance that a branch sits out of an image; never all branches of a segment."""

    def __post_init__(self) -> None:
        require_range("branched.calibration_images", self.calibration_images, 2, 1_000_000)
        require_range("branched.drop", self.drop, 0, 0.9)


@dataclass(frozen=True)
class AverageSettings:
    """A running average of the weights (EMA), which is what is judged and kept."""

    decay: float = 0.0
    """Share of the average that each update keeps, at most (1 + n) / (10 + n) at the n-th.

    0 keeps no average.
    """
    every_steps: int = 1
    """Steps between updates."""

    def __post_init__(self) -> None:
        require_range("average.decay", self.decay, 0, 0.999999)
        require_range("average.every_steps", self.every_steps, 1, 1_000_000)


@dataclass(frozen=True)
class TrainerSettings:
    """How long, and on how much machine."""

    max_epochs: int = 5
    """Passes over the training images."""
    patience_epochs: int = 0
    """Stop after so many epochs without a better held-out accuracy; 0 never stops early."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Training arithmetic; auto takes bf16 where the processor has matrix units for it.

    Validation is always fp32.
    """
    threads: int = 0
    """Threads of one operator; 0 leaves PyTorch's choice, one per core."""
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    """Where; auto takes CUDA where there is a card."""
    devices: int = 1
    """Processes on each machine, one a card; 0 takes every card."""
    nodes: int = 1
    """Machines; torchrun and SLURM are recognised."""
    sync_norms: bool = True
    """Batch norms see the images of all processes, so that they do not depend on how many there
    are.
    """
    micro_batches: int = 1
    """Parts in which each process takes its share of a batch, where memory does not hold it at
    once.
    """
    channels_last: bool = True
    """Memory order of images and kernels."""
    compile: bool = False
    """Through torch.compile."""
    deterministic: bool = False
    """Refuse operators whose result may differ from run to run (CUDA has some)."""
    precise_norm_images: int = 0
    """Training images by which the statistics of batch norms are taken anew before each validation,
    in whole batches of 64 of them; 0 keeps the running ones.
    """
    save_every_steps: int = 0
    """Steps between saves within an epoch; 0 saves at the end of each epoch only."""
    tensorboard: bool = True
    """Keep curves for TensorBoard in the folder's `logs`, where the tensorboard package is
    installed.
    """

    def __post_init__(self) -> None:
        require_range("trainer.max_epochs", self.max_epochs, 1)
        require_range("trainer.patience_epochs", self.patience_epochs, 0)
        require_range("trainer.threads", self.threads, 0, 1024)
        require_range("trainer.devices", self.devices, 0, 1024)
        require_range("trainer.nodes", self.nodes, 1, 65536)
        require_range("trainer.micro_batches", self.micro_batches, 1, 65536)
        require_range("trainer.precise_norm_images", self.precise_norm_images, 0)
        if self.precise_norm_images == 1:
            raise BadInput(
                "trainer.precise_norm_images is 1, one image has no variance, take 2 or more"
            )
        require_range("trainer.save_every_steps", self.save_every_steps, 0)


@dataclass(frozen=True)
class Recipe:
    """Everything one training run depends on."""

    model: str = "torchvision:resnet18?num_classes=10"
    """The network where the caller names none.

    Torchvision:NAME, timm:NAME or FILE.py:FACTORY, with ?key=value.
    """
    seed: int = 0
    """Of batch order, augmentation, dropout, and of starting weights where none are given."""
    data: DataSettings = field(default_factory=DataSettings)
    augment: AugmentSettings = field(default_factory=AugmentSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    loss: LossSettings = field(default_factory=LossSettings)
    branched: BranchedSettings = field(default_factory=BranchedSettings)
    average: AverageSettings = field(default_factory=AverageSettings)
    trainer: TrainerSettings = field(default_factory=TrainerSettings)
    start: Literal["own", "he", "zero_residual"] = "own"
    """Where no weights are given, those to start from.

    As the network's own code draws them (PyTorch's defaults, in branches that inherit none), as He
    et al. 2015, or likewise with the last scale of every residual path at 0 (Goyal et al. 2017).
    """

    def __post_init__(self) -> None:
        require_range("seed", self.seed, 0, 2**32 - 1)
        for key, text in (("model", self.model), ("data.root", self.data.root)):
            if not isinstance(text, str):
                raise BadInput(f"{key} is {text!r}, it must be text")
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
