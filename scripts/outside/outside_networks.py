"""The networks of the table: files of packages, libraries of models, and timm families by a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

SEED, FAMILIES = 0, 40
TOO_LARGE = (
    "huge",
    "giant",
    "gigantic",
    "enormous",
    "xlarge",
    "large",
    "xxl",
    "so400m",
    "_7b",
    "big",
)
"""Sizes that are not drawn: the table is about operators."""


@dataclass(frozen=True)
class OutsideNetwork:
    """A network by the name that the table shows."""

    name: str
    group: str
    source: str = ""
    """MODEL of the command line; empty for what a factory makes."""
    make: Callable[[], nn.Module] | None = None
    inputs: str = ""
    """As `--input` reads it; empty for the network's own."""


def package_file(package: str, path: str) -> str:
    """A file of an installed package; a path that does not exist where there is none."""
    spec = find_spec(package)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return str(Path(folders[0]) / path) if folders else f"{package}/{path}"


def onnx_files() -> list[OutsideNetwork]:
    ocr, vad = "rapidocr_onnxruntime", "silero_vad"
    rows = [
        ("PP-OCRv4 detector", ocr, "models/ch_PP-OCRv4_det_infer.onnx", "1,3,320,320"),
        ("PP-OCRv4 recogniser", ocr, "models/ch_PP-OCRv4_rec_infer.onnx", "1,3,48,320"),
        ("PP-OCR classifier", ocr, "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", "1,3,48,192"),
        ("nudenet 320n", "nudenet", "320n.onnx", "1,3,320,320"),
        ("magika v3.3", "magika", "models/standard_v3_3/model.onnx", "1,2048"),
        ("silero-vad", vad, "data/silero_vad.onnx", "1,512;2,1,128;():int64"),
        ("silero-vad op15", vad, "data/silero_vad_16k_op15.onnx", "1,512;2,1,128;():int64"),
        ("silero-vad op18", vad, "data/silero_vad_op18_ifless.onnx", "1,576;();2,1,128"),
        ("silero-vad openvino", vad, "data/silero_vad_openvino_16k.onnx", ""),
    ]
    return [
        OutsideNetwork(name, "ONNX file", source=package_file(package, path), inputs=inputs)
        for name, package, path, inputs in rows
    ]


def yolo(config: str) -> nn.Module:
    network: nn.Module = import_module("ultralytics").YOLO(config).model
    head = list(network.modules())[1][-1]  # type: ignore[index]
    head.export, head.format = True, "onnx"
    return network


def segmentation_model(name: str) -> nn.Module:
    smp = import_module("segmentation_models_pytorch")
    made: nn.Module = getattr(smp, name)("resnet18", encoder_weights=None, classes=5)
    return made


class Hidden(nn.Module):
    """A network of transformers that returns its tensors, without caches."""

    def __init__(self, network: nn.Module, keys: tuple[str, ...], **fixed: Any) -> None:
        super().__init__()
        self.network, self.keys, self.fixed = network, keys, fixed

    def forward(self, x: torch.Tensor) -> Any:
        result = self.network(x, **self.fixed)
        values = tuple(getattr(result, key) for key in self.keys)
        return values[0] if len(values) == 1 else values


def transformer(model: str, config: str, keys: tuple[str, ...], **settings: Any) -> nn.Module:
    library = import_module("transformers")
    made = getattr(library, model)(getattr(library, config)(**settings))
    return Hidden(made, keys)


def whisper_encoder() -> nn.Module:
    library = import_module("transformers")
    made = library.WhisperModel(library.WhisperConfig(max_source_positions=1500))
    return Hidden(made.encoder, ("last_hidden_state",))


def detr() -> nn.Module:
    library = import_module("transformers")
    config = library.DetrConfig(
        use_pretrained_backbone=False, backbone="resnet18", use_timm_backbone=True
    )
    return Hidden(library.DetrForObjectDetection(config), ("logits", "pred_boxes"))


def made_networks() -> list[OutsideNetwork]:
    last = ("last_hidden_state",)
    rows: list[tuple[str, str, Callable[[], nn.Module], str]] = [
        ("YOLOv8n", "ultralytics", lambda: yolo("yolov8n.yaml"), "1,3,320,320"),
        ("YOLO11n", "ultralytics", lambda: yolo("yolo11n.yaml"), "1,3,320,320"),
    ]
    for name in (
        "Unet",
        "UnetPlusPlus",
        "FPN",
        "PSPNet",
        "DeepLabV3Plus",
        "Linknet",
        "MAnet",
        "PAN",
    ):
        rows.append(
            (
                f"smp {name}",
                "segmentation-models",
                lambda n=name: segmentation_model(n),
                "1,3,256,256",
            )
        )  # type: ignore[misc]
    tokens = "1,128:int64"
    rows += [
        ("BERT", "transformers", lambda: transformer("BertModel", "BertConfig", last), tokens),
        (
            "DistilBERT",
            "transformers",
            lambda: transformer("DistilBertModel", "DistilBertConfig", last),
            tokens,
        ),
        (
            "RoBERTa",
            "transformers",
            lambda: transformer("RobertaModel", "RobertaConfig", last),
            tokens,
        ),
        (
            "ALBERT",
            "transformers",
            lambda: transformer(
                "AlbertModel",
                "AlbertConfig",
                last,
                hidden_size=768,
                num_attention_heads=12,
                intermediate_size=3072,
            ),
            tokens,
        ),
        (
            "ELECTRA",
            "transformers",
            lambda: transformer("ElectraModel", "ElectraConfig", last),
            tokens,
        ),
        ("ViT", "transformers", lambda: transformer("ViTModel", "ViTConfig", last), "1,3,224,224"),
        (
            "DeiT",
            "transformers",
            lambda: transformer("DeiTModel", "DeiTConfig", last),
            "1,3,224,224",
        ),
        (
            "Swin",
            "transformers",
            lambda: transformer("SwinModel", "SwinConfig", last),
            "1,3,224,224",
        ),
        (
            "ConvNeXt",
            "transformers",
            lambda: transformer("ConvNextModel", "ConvNextConfig", last),
            "1,3,224,224",
        ),
        (
            "SegFormer",
            "transformers",
            lambda: transformer("SegformerForSemanticSegmentation", "SegformerConfig", ("logits",)),
            "1,3,256,256",
        ),
        ("Whisper encoder", "transformers", whisper_encoder, "1,80,3000"),
        ("DETR", "transformers", detr, "1,3,256,256"),
    ]
    return [
        OutsideNetwork(name, group, make=make, inputs=inputs) for name, group, make, inputs in rows
    ]


def torchvision_networks() -> list[OutsideNetwork]:
    rows = []
    for name in (
        "deeplabv3_mobilenet_v3_large",
        "deeplabv3_resnet50",
        "fcn_resnet50",
        "lraspp_mobilenet_v3_large",
    ):
        settings = "weights_backbone=null" + ("&aux_loss=false" if "lraspp" not in name else "")
        rows.append(
            OutsideNetwork(
                name, "torchvision", f"torchvision:{name}?{settings}", inputs="1,3,224,224"
            )
        )
    for name in (
        *(
            "fasterrcnn_mobilenet_v3_large_320_fpn",
            "maskrcnn_resnet50_fpn",
            "retinanet_resnet50_fpn",
        ),
        *(
            "ssdlite320_mobilenet_v3_large",
            "ssd300_vgg16",
            "fcos_resnet50_fpn",
            "keypointrcnn_resnet50_fpn",
        ),
    ):
        source = f"torchvision:{name}?weights_backbone=null"
        rows.append(OutsideNetwork(name, "torchvision", source, inputs="1,3,320,320"))
    classifiers = "alexnet googlenet mnasnet0_5 swin_t vit_b_32 efficientnet_v2_s convnext_tiny maxvit_t regnet_x_400mf"
    classifiers += (
        " densenet121 inception_v3 resnext50_32x4d shufflenet_v2_x1_0 squeezenet1_1 wide_resnet50_2"
    )
    rows += [
        OutsideNetwork(name, "torchvision", f"torchvision:{name}") for name in classifiers.split()
    ]
    return rows


def timm_networks() -> list[OutsideNetwork]:
    """One network each of families that a seed draws."""
    import timm

    drawn = random.Random(SEED)
    families = sorted(timm.list_modules())
    drawn.shuffle(families)
    rows: list[OutsideNetwork] = []
    for family in families:
        names = [n for n in timm.list_models(module=family) if not any(w in n for w in TOO_LARGE)]
        if names and len(rows) < FAMILIES:
            name = drawn.choice(sorted(names))
            rows.append(OutsideNetwork(f"timm:{name}", f"timm {family}", f"timm:{name}"))
    wanted = ("fastvit_ma36", "csatv2_21m")
    return rows + [
        OutsideNetwork(f"timm:{n}", "timm, by name", f"timm:{n}")
        for n in wanted
        if f"timm:{n}" not in {r.name for r in rows}
    ]


def all_networks() -> list[OutsideNetwork]:
    return [*onnx_files(), *made_networks(), *torchvision_networks(), *timm_networks()]
