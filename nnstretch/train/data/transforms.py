"""From a stored image to what a network sees: per image before the batch, per batch on the device.

Torchvision's transforms draw on PyTorch's global generator, so it is seeded for every image from
(seed, epoch, image): what an image looks like depends on no worker, no neighbour and no
interruption.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nnstretch.train.data.dataset import Dataset, Images, InMemoryImages
from nnstretch.train.data.sampling_order import BatchSelection, seeded_generator
from nnstretch.train.recipe import AugmentSettings, DataSettings

ImageTransform = Callable[[Tensor], Tensor]

LEAST_ALPHA = 1e-6
"""Mixtures are of one image each by then, and far smaller ones are zero to float32."""


def training_transform(data: DataSettings, augment: AugmentSettings) -> ImageTransform | None:
    """Return the crop, mirroring and RandAugment of one uint8 image; None where there are none."""
    if augment.crop_scale == 1 and not (augment.pad or augment.flip or augment.randaugment):
        return None
    from torchvision.transforms import v2

    side = data.image_px
    steps: list[Any] = []
    if augment.crop_scale < 1:
        scale = (augment.crop_scale, 1.0)
        steps.append(v2.RandomResizedCrop(side, scale=scale, antialias=True))
    elif augment.pad > 0:
        border = round(augment.pad * side)
        steps += [ResizeAndCrop(side, side), v2.RandomCrop(side, padding=border)]
    if augment.flip > 0:
        steps.append(v2.RandomHorizontalFlip(augment.flip))
    if augment.randaugment > 0:
        steps.append(v2.RandAugment(augment.randaugment, augment.randaugment_magnitude))
    return v2.Compose([*steps, ResizeAndCrop(side, side)])


class ResizeAndCrop:
    """Shorter side to `resize_px`, then the middle square of `px`."""

    def __init__(self, resize_px: int, px: int) -> None:
        self._resize_px = resize_px
        self._px = px

    def __call__(self, image: Tensor) -> Tensor:
        """Return an image resized and cropped."""
        if image.shape[-2:] == (self._px, self._px) and self._resize_px == self._px:
            return image
        from torchvision.transforms.v2 import functional as vision

        if min(image.shape[-2:]) != self._resize_px:
            image = vision.resize(image, [self._resize_px], antialias=True)
        return vision.center_crop(image, [self._px, self._px])


def needs_resize(images: Images, px: int, resize_px: int = 0) -> bool:
    """Return whether images may have another size than `px` squared, or are resized beyond it."""
    if not isinstance(images, InMemoryImages):
        return True
    return tuple(images.images.shape[-2:]) != (px, px) or resize_px > px


def validation_transform(images: Images, data: DataSettings) -> ResizeAndCrop | None:
    """Return the transform of held-out images; None where every image has its size already."""
    if not needs_resize(images, data.validation_px, data.val_resize_px):
        return None
    return ResizeAndCrop(data.val_resize_px or data.validation_px, data.validation_px)


def normalize_images(images: Tensor, dataset: Dataset) -> Tensor:
    """Normalize uint8 to float32 of mean 0 and deviation 1, on the images' own device."""
    return standardize_colors(images.float().div_(255), dataset)


def standardize_colors(images: Tensor, dataset: Dataset) -> Tensor:
    """Return images with the data set's mean and deviation removed."""
    mean = color_tensor(images.device, tuple(dataset.mean))
    std = color_tensor(images.device, tuple(dataset.std))
    return (images - mean) / std


@lru_cache(maxsize=64)
def color_tensor(device: torch.device, color: tuple[float, ...]) -> Tensor:
    """Return a cached tensor [1, 3, 1, 1]: copying it to a card anew would wait for the card."""
    with torch.inference_mode(False):
        return torch.tensor(color, device=device).view(1, 3, 1, 1)


def make_mixer(augment: AugmentSettings, classes: int) -> Any:
    """Return torchvision's mixup, CutMix, or a random choice of both; None where neither is on."""
    if not (augment.mixup or augment.cutmix):
        return None
    from torchvision.transforms import v2

    mixers: list[Any] = []
    if augment.mixup:
        mixers.append(v2.MixUp(alpha=max(LEAST_ALPHA, augment.mixup), num_classes=classes))
    if augment.cutmix:
        mixers.append(v2.CutMix(alpha=max(LEAST_ALPHA, augment.cutmix), num_classes=classes))
    return mixers[0] if len(mixers) == 1 else v2.RandomChoice(mixers)


def augment_batch(
    images: Tensor, selection: BatchSelection, seed: int, augment: AugmentSettings, dataset: Dataset
) -> Tensor:
    """Warp and normalize training images on their own device."""
    brightness = images.float().div_(255)
    if augment.shift or augment.rotate_deg or augment.scale:
        matrices = draw_affine_matrices(selection, seed, augment)
        brightness = warp_images(brightness, matrices.to(images.device, non_blocking=True))
    return standardize_colors(brightness, dataset)


def draw_affine_matrices(selection: BatchSelection, seed: int, augment: AugmentSettings) -> Tensor:
    """Return affine matrices [images, 2, 3] of a selection.

    Drawn for the whole batch, so that an image's matrix does not depend on the number of processes.
    """
    generator = seeded_generator(seed, selection.epoch, selection.step)
    count = selection.batch_images

    def draw(limit: float) -> Tensor:
        return (torch.rand(count, generator=generator) * 2 - 1) * limit

    angle = draw(math.radians(augment.rotate_deg))
    size = 1 + draw(augment.scale)
    # The sampling grid spans -1 to 1.
    right = draw(2 * augment.shift)
    down = draw(2 * augment.shift)
    cos = angle.cos() / size
    sin = angle.sin() / size
    matrices = torch.stack((cos, -sin, right, sin, cos, down), dim=1).view(count, 2, 3)
    first = selection.first_position
    return matrices[first : first + len(selection.indices)]


def warp_images(images: Tensor, matrices: Tensor) -> Tensor:
    """Warp images in fp32, as coordinates of 8 bits blur; what enters from outside is black."""
    with torch.autocast(images.device.type, enabled=False):
        grid = functional.affine_grid(matrices, list(images.shape), align_corners=False)
        return functional.grid_sample(images, grid, align_corners=False)
