"""What is captured does what the module does: at its batch, at every inference, in its types."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from nnstretch.capture import build, capture, load_model, trace
from nnstretch.cli import main
from nnstretch.errors import BadInput, CannotCapture
from nnstretch.export.bundle import export
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch import stretch

Step = Callable[[nn.Module, torch.Tensor], torch.Tensor]


class Of(nn.Module):
    """A layer of five numbers, a table of two rows, and a function of both."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.step = nn.Linear(5, 5), step
        self.table = nn.Parameter(torch.randn(2, 5))
        self.register_buffer("count", torch.zeros(1, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the function."""
        return self.step(self, x)


BATCHES: dict[str, tuple[int, Step]] = {
    "another way at one": (1, lambda m, x: m.layer(x) * (1 if x.shape[0] == 1 else 2)),
    "another way at several": (1, lambda m, x: x - m.layer(x).mean(0) if len(x) > 1 else x * 3),
    "a squeeze of everything": (1, lambda m, x: m.layer(x[:, None]).squeeze()[None] + x),
    "as many as a table has rows": (1, lambda m, x: m.layer(x) + m.table),
    "all but the first": (3, lambda m, x: torch.cat([x[1:], x[:1]]) + x.flip(0)),
    "every second": (4, lambda m, x: x[::2] * m.layer(x[1::2])),
    "halves side by side": (4, lambda m, x: m.layer(torch.cat(x.chunk(2), 1)[:, :5])),
    "parts of four": (8, lambda m, x: torch.cat([m.layer(part) for part in x.split(4)])),
    "another way above four": (8, lambda m, x: m.layer(x) * (2 if x.shape[0] > 4 else 1)),
    "another way at multiples": (8, lambda m, x: m.layer(x) * (1 if x.shape[0] % 4 else 2)),
    "the first four": (8, lambda m, x: m.layer(x[:4])),
    "a maximum in Python": (3, lambda m, x: m.layer(x) * max(x.shape[0], 2)),
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_network_is_captured_at_the_batch_of_its_example(name: str) -> None:
    batch, step = BATCHES[name]
    module, x = Of(step).eval(), torch.randn(batch, 5)
    captured = trace(module, x, "net")
    assert captured.graph.inputs[0].spec.shape == (batch, 5)
    with torch.no_grad():
        expected = module(x)
        assert captured.graph.nodes[-1].output.shape == tuple(expected.shape)
        computed = build(captured.graph, captured.weights).eval()(x)
    torch.testing.assert_close(computed, expected)


def test_a_batch_that_may_vary_stays_open() -> None:
    captured = trace(Of(lambda m, x: m.layer(x).relu()).eval(), torch.randn(1, 5), "net")
    assert build(captured.graph, captured.weights)(torch.randn(7, 5)).shape == (7, 5)


def test_a_large_batch_is_tried_where_the_network_may_go_another_way_there() -> None:
    tried: list[int] = []

    def step(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if type(x) is torch.Tensor and not torch._subclasses.fake_tensor.is_fake(x):
            tried.append(x.shape[0])
        return module.layer(x)

    def split(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([*map(partial(step, module), x.split(64))])

    for function, batches in ((step, [3]), (split, [64, 1])):
        trace(Of(function).eval(), torch.randn(65, 5), "net")
        assert tried == batches
        tried.clear()


def test_trying_a_network_draws_no_random_number_of_the_caller() -> None:
    noisy = Of(lambda m, x: m.layer(x) + torch.randn_like(x)).eval()
    before = torch.get_rng_state()
    captured = trace(noisy, torch.randn(1, 5, generator=torch.Generator()), "net")
    assert torch.equal(torch.get_rng_state(), before)
    assert build(captured.graph, captured.weights)(torch.ones(7, 5)).shape == (7, 5)


def counted(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    module.count += 1
    return module.layer(x) * module.count


def remembered(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    sums = module.layer(x) + module.count
    module.count.copy_(sums)
    return sums


@pytest.mark.parametrize("step", [counted, remembered])
def test_memory_between_inferences_is_refused_by_name(step: Step) -> None:
    module = Of(step).eval()
    with pytest.raises(CannotCapture, match=r"net, .*writes into count, which the next inference"):
        trace(module, torch.randn(1, 5), "net")
    assert not module.count.any()


def test_a_buffer_that_is_written_before_it_is_read_is_no_memory() -> None:
    def scratch(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        module.count.copy_(x)
        return module.layer(module.count)

    module, x = Of(scratch).eval(), torch.randn(1, 5)
    captured = trace(module, x, "net")
    torch.testing.assert_close(build(captured.graph, captured.weights).eval()(x), module(x))


def test_dropout_in_evaluation_is_refused_by_name() -> None:
    always = Of(lambda m, x: nn.functional.dropout(m.layer(x), 0.5, training=True))
    with pytest.raises(
        CannotCapture, match=r"net, dropout in forward drops numbers by chance, it is in training"
    ):
        trace(always.eval(), torch.randn(1, 5), "net")
    usual = Of(lambda m, x: nn.functional.dropout(m.layer(x), 0.5, training=m.training))
    trace(usual.eval(), torch.randn(1, 5), "net")


def test_norms_that_follow_their_input_in_evaluation_are_refused_by_name() -> None:
    def follow(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.batch_norm(x, module.count[0], module.count[0] + 1, training=True)

    with pytest.raises(CannotCapture, match=r"net, batch_norm in forward writes its statistics"):
        trace(Of(follow).eval(), torch.randn(3, 5), "net")
    own = Of(lambda m, x: nn.functional.batch_norm(m.layer(x), None, None, training=True)).eval()
    x = torch.randn(3, 5)
    captured = trace(own, x, "net")
    torch.testing.assert_close(build(captured.graph, captured.weights).eval()(x), own(x))


def test_a_program_that_was_saved_in_training_mode_is_refused_by_name(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).train()
    program = torch.export.export(module, (torch.randn(2, 3, 8, 8),))
    torch.export.save(program, tmp_path / "net.pt2")
    with pytest.raises(CannotCapture, match=r"batch_norm in 1 writes its statistics, it is in tr"):
        load_model(str(tmp_path / "net.pt2"))


def one_processor(module: nn.Module, shape: tuple[int, ...]) -> tuple[nn.Module, Plan]:
    plan = Plan("net", shape, (Segment("input", "output", (Branch("cpu"),)),))
    return stretch(module, plan).eval(), plan


@pytest.mark.parametrize("affine", [False, True])
def test_norms_over_pixels_and_channels_stay_what_they_are(affine: bool) -> None:
    norm = nn.LayerNorm((4, 6, 6), elementwise_affine=affine)
    if affine:
        nn.init.uniform_(norm.weight)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.ReLU()).eval()
    stretched, _ = one_processor(module, (1, 3, 8, 8))
    x = torch.randn(1, 3, 8, 8)
    torch.testing.assert_close(stretched(x), module(x))


def test_other_weights_than_float32_are_refused_in_one_line(tmp_path: Path) -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 3).half()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Compute in half precision."""
            return self.layer(x.half()).float()

    module = Half().eval()
    stretched, plan = one_processor(module, (1, 5))
    torch.testing.assert_close(stretched(torch.ones(1, 5)), module(torch.ones(1, 5)))
    with pytest.raises(BadInput, match=r"weights are torch\.float16"):
        export(stretched, plan, tmp_path / "net.nns")


def test_a_weight_may_be_an_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(
        "from torch import nn\n\n\nclass Both(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.layer = nn.Linear(5, 3)\n\n"
        "    def forward(self, x):\n        return self.layer(x), self.layer.weight\n"
    )
    arguments = ["net.py:Both", "--input", "1,5", "--out", "net.nns", "--json"]
    assert main(["export", *arguments]) == 0, capsys.readouterr().err
    assert main(["run", "net.nns", "--clock", "real", "--repeat", "1", "--json"]) == 0


def test_work_that_depends_on_more_than_the_input_is_not_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(
        "from torch import nn\n\n\nclass Turns(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.layer, self.turns = nn.Linear(5, 3), [1.0]\n\n"
        "    def forward(self, x):\n        self.turns.append(1.0)\n"
        "        return self.layer(x) * len(self.turns)\n"
    )
    Path("plan.yaml").write_text(
        "format: 1\nmodel: net.py:Turns\ninput: [1, 5]\nmerge: concat\n"
        "segments:\n- {end: output, processor: cpu}\n"
    )
    for arguments in (["net.py:Turns", "--input", "1,5"], ["plan.yaml"]):
        assert main(["export", *arguments, "--out", "net.nns"]) == 1
        assert "net.py:Turns computes something else than the module" in capsys.readouterr().err
    assert not Path("net.nns").exists()


def test_a_slice_of_the_last_inputs_of_a_batch_is_exported(tmp_path: Path) -> None:
    from nnstretch import Session

    module = Of(lambda m, x: m.layer(x[-1:]) + x[:2].sum(0)).eval()
    stretched, plan = one_processor(module, (3, 5))
    export(stretched, plan, tmp_path / "net.nns")
    x = torch.randn(3, 5)
    with Session(tmp_path / "net.nns", clock="real") as session:
        np.testing.assert_allclose(session.run(x.numpy()), module(x).detach().numpy(), atol=1e-5)


def test_a_network_that_is_refused_keeps_its_weights() -> None:
    embedding = nn.Sequential(nn.Embedding(10, 8, max_norm=0.5), nn.Linear(8, 3)).eval()
    adding = Of(lambda m, x: m.layer.weight.add_(1) @ x.mT).eval().requires_grad_(False)
    for module, x in ((embedding, torch.arange(10)[None]), (adding, torch.randn(2, 5))):
        before = {name: value.clone() for name, value in module.state_dict().items()}
        with pytest.raises(CannotCapture, match="writes into"):
            trace(module, x, "net")
        for name, value in module.state_dict().items():
            assert torch.equal(value, before[name]), name


def test_threads_that_capture_at_once_wait_for_each_other() -> None:
    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), nn.ReLU()).train()

    shared, x, before = network(), torch.ones(2, 4), sys.stdout
    with ThreadPoolExecutor(4) as pool:
        graphs = [pool.submit(capture, module, x) for module in [shared] * 8 + [network()] * 8]
        assert len({str(graph.result()) for graph in graphs}) == 1
    assert shared.training
    assert sys.stdout is before
    assert logging.root.manager.disable == logging.NOTSET
