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

from nnstretch.train.data.dataset import Dataset
from nnstretch.train.data.sampling_order import BatchSelection, seeded_generator
from nnstretch.train.recipe import AugmentSettings, DataSettings

ImageTransform = Callable[[Tensor], Tensor]


def training_transform(data: DataSettings, augment: AugmentSettings) -> ImageTransform | None:
    """Return the transform that crops, mirrors and applies RandAugment to one uint8 image.

    None where every image only has to be of the size it is.
    """
    if augment.crop_scale == 1 and not (augment.pad or augment.flip or augment.randaugment):
        return None
    from torchvision.transforms import v2

    steps: list[Any] = []
    if augment.crop_scale < 1:
        steps.append(
            v2.RandomResizedCrop(data.image_px, scale=(augment.crop_scale, 1.0), antialias=True)
        )
    elif augment.pad > 0:
        border = round(augment.pad * data.image_px)
        steps += [
            ResizeAndCrop(data.image_px, data.image_px),
            v2.RandomCrop(data.image_px, padding=border),
        ]
    if augment.flip > 0:
        steps.append(v2.RandomHorizontalFlip(augment.flip))
    if augment.randaugment > 0:
        steps.append(v2.RandAugment(augment.randaugment, augment.randaugment_magnitude))
    return v2.Compose([*steps, ResizeAndCrop(data.image_px, data.image_px)])


class ResizeAndCrop:
    """Shorter side to `resize_px`, then the middle square of `px`.

    An image that is so already is left alone.
    """

    def __init__(self, resize_px: int, px: int) -> None:
        self._resize_px, self._px = resize_px, px

    def __call__(self, image: Tensor) -> Tensor:
        """Return an image resized and cropped to its side."""
        if image.shape[-2:] == (self._px, self._px) and self._resize_px == self._px:
            return image
        from torchvision.transforms.v2 import functional as vision

        if min(image.shape[-2:]) != self._resize_px:
            image = vision.resize(image, [self._resize_px], antialias=True)
        return vision.center_crop(image, [self._px, self._px])


def validation_transform(data: DataSettings) -> ResizeAndCrop:
    """Return the transform of held-out images."""
    return ResizeAndCrop(data.val_resize_px or data.validation_px, data.validation_px)


def normalize_images(images: Tensor, dataset: Dataset) -> Tensor:
    """Normalize uint8 to float32 of mean 0 and deviation 1, on the images' own device."""
    return standardize_colors(images.float().div_(255), dataset)


def standardize_colors(images: Tensor, dataset: Dataset) -> Tensor:
    """Return images with the data set's mean and deviation removed."""
    mean, std = (
        color_tensor(images.device, tuple(colour)) for colour in (dataset.mean, dataset.std)
    )
    return (images - mean) / std


@lru_cache(maxsize=64)
def color_tensor(device: torch.device, colour: tuple[float, ...]) -> Tensor:
    """Return a tensor [1, 3, 1, 1] that is kept, because to copy it to a card is to wait for the
    card.
    """
    with torch.inference_mode(False):
        return torch.tensor(colour, device=device).view(1, 3, 1, 1)


def augment_batch(
    images: Tensor, pick: BatchSelection, seed: int, augment: AugmentSettings, dataset: Dataset
) -> Tensor:
    """Augment training images as the network sees them.

    Moved about, then normalised, on their own device.
    """
    light = images.float().div_(255)
    if augment.shift or augment.rotate_deg or augment.scale:
        light = warp_images(
            light, draw_affine_matrices(pick, seed, augment).to(images.device, non_blocking=True)
        )
    return standardize_colors(light, dataset)


def draw_affine_matrices(pick: BatchSelection, seed: int, augment: AugmentSettings) -> Tensor:
    """Return affine matrices [images, 2, 3] of a pick.

    Drawn for the whole batch, so that each image's is the same however it is shared out.
    """
    generator, count = seeded_generator(seed, pick.epoch, pick.step), pick.batch_images

    def spread(limit: float) -> Tensor:
        return (torch.rand(count, generator=generator) * 2 - 1) * limit

    angle, size = spread(math.radians(augment.rotate_deg)), 1 + spread(augment.scale)
    right, down = (
        spread(2 * augment.shift),
        spread(2 * augment.shift),
    )  # the sampling grid spans -1 to 1
    cos, sin = angle.cos() / size, angle.sin() / size
    moves = torch.stack((cos, -sin, right, sin, cos, down), dim=1).view(count, 2, 3)
    return moves[pick.first_position : pick.first_position + len(pick.indices)]


def warp_images(images: Tensor, moves: Tensor) -> Tensor:
    """Warp images; what enters from outside is black.

    In fp32, also where a network trains in bf16: coordinates of 8 bits blur.
    """
    with torch.autocast(images.device.type, enabled=False):
        grid = functional.affine_grid(moves, list(images.shape), align_corners=False)
        return functional.grid_sample(images, grid, align_corners=False)
