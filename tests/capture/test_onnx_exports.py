"""Networks that PyTorch exported to ONNX are captured as what they were."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torchvision
from support.onnx_graphs import OPSET, check_agrees
from support.slow_half import half_slow
from torch import nn

from nnstretch.capture import load_model, trace
from nnstretch.capture.onnx.reader import read_onnx
from nnstretch.stretch import stretch
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.lowering.two_branch_plan import two_branches


class Attention(nn.Module):
    """A small vision transformer: patches, a class token, positions, pre-norm blocks."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.class_token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 17, width) * 0.1)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))
        self.head = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        b, n, c = x.shape
        q, k, v = (
            self.qkv(self.norm1(x))
            .reshape(b, n, 3, self.heads, c // self.heads)
            .permute(2, 0, 3, 1, 4)
            .unbind(0)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.project(y.transpose(1, 2).reshape(b, n, c))
        x = x + self.mlp(self.norm2(x))
        return self.head(x[:, 0])


def densenet() -> nn.Module:
    return torchvision.models.DenseNet(8, (2, 2), 16, num_classes=5)


MODELS: dict[str, tuple[Callable[[], nn.Module], bool, bool]] = {
    "resnet18": (lambda: torchvision.models.resnet18(num_classes=5), True, True),
    "shufflenet": (lambda: torchvision.models.shufflenet_v2_x0_5(num_classes=5), False, False),
    "densenet": (densenet, True, True),
    "attention": (Attention, True, True),
    "attention_fixed": (Attention, True, False),
    "mobilenet": (lambda: torchvision.models.mobilenet_v3_small(num_classes=5), False, False),
    "squeezenet": (lambda: torchvision.models.squeezenet1_1(num_classes=5), False, False),
    "efficientnet": (lambda: torchvision.models.efficientnet_b0(num_classes=5), False, False),
}


"""Factory, whether torch.onnx's newer exporter writes it, whether its batch is open."""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Each network is exported once, when a test first asks for it."""
    folder, found = tmp_path_factory.mktemp("onnx"), dict[str, Path]()

    def path(name: str) -> Path:
        if name not in found:
            found[name] = export(name, folder / f"{name}.onnx")
        return found[name]

    return path


@pytest.mark.filterwarnings("ignore")
def export(name: str, path: Path) -> Path:
    make, dynamo, open_batch = MODELS[name]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        module = make().eval()
        for norm in (m for m in module.modules() if isinstance(m, nn.BatchNorm2d)):
            norm.running_mean.normal_(0, 0.1)
            norm.running_var.uniform_(0.5, 1.5)
            nn.init.normal_(norm.bias, 0, 0.1)
    x = torch.zeros(2 if open_batch else 1, 3, 32, 32)
    if dynamo:
        shapes = ({0: "batch"},) if open_batch else None
        torch.onnx.export(
            module,
            (x,),
            str(path),
            dynamo=True,
            external_data=False,
            opset_version=OPSET,
            verbose=False,
            dynamic_shapes=shapes,
        )
    else:
        torch.onnx.export(module, (x,), str(path), dynamo=False, opset_version=17)
    return path


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_an_exported_network_computes_what_onnxruntime_computes_at_any_batch(
    name: str, exported: Callable[[str], Path]
) -> None:
    captured = check_agrees(exported(name))
    make = MODELS[name][0]
    original = sum(p.numel() for p in make().parameters())
    assert 0.97 * original < captured.graph.params <= original, (
        "exporters fold norms and drop zero biases, nothing else"
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_cuts_carry_the_names_of_modules(exported: Callable[[str], Path]) -> None:
    for name, expected in {
        "resnet18": {"maxpool", "layer1.0", "layer1", "layer4"},
        "shufflenet": {"conv1", "stage2.0", "stage2", "stage4"},
        "mobilenet": {"features.1", "features.4.block.1", "features"},
    }.items():
        graph = read_onnx(exported(name)).graph
        assert expected <= {cut.name for cut in NetworkAnalysis(graph).cuts}, name
    assert "layer2.0.conv1.weight" in {
        w.name for w in read_onnx(exported("resnet18")).graph.weights
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", half_slow(["mobilenet", "densenet", "resnet18"]))
def test_a_file_is_stretched_like_any_module(name: str, exported: Callable[[str], Path]) -> None:
    path = exported(name)
    direct = NetworkAnalysis(read_onnx(path).graph)
    assert (
        two_branches(direct, str(path), ("cpu", "dsp"), (0.5, 0.75), 0.5).branched_macs
        > 0.9 * direct.graph.macs
    )

    module = load_model(str(path))
    graph = trace(module, torch.zeros(1, 3, 32, 32)).graph
    survey = two_branches(NetworkAnalysis(graph), str(path), ("cpu", "dsp"), (0.5, 0.75), 0.5)
    network = stretch(module, survey.plan)
    network.train()(torch.randn(2, 3, 32, 32)).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())
