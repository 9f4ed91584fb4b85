"""Profiling: what is drawn, what is probed, and what comes out of a known backend."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fake_meter import FakeMeter, law_us
from support.quiet_watch import quiet_watch
from support.scripts import load_command

from nnstretch.errors import BadInput
from nnstretch.files.journal import only_writer
from nnstretch.kernel import MOBILE_FUSION, ChannelBlockedLayout, FusionRules
from nnstretch.predict import load_soc
from nnstretch.profile.fitting.error_quantiles import CLASS, error_quantiles
from nnstretch.profile.fusion_probe import FOLDED, fused_pairs
from nnstretch.profile.profile_request import ProfileRequest
from nnstretch.profile.profile_run import ProfileRun
from nnstretch.profile.sampling.journal import NAME
from nnstretch.profile.sampling.kernel_generator import (
    MOST_MACS,
    generate_kernels,
    load_prior,
    perturb_kernel,
)
from nnstretch.profile.sampling.kernel_spec import KernelSpec, kernel_of_spec, spec_of_kernel
from nnstretch.profile.validation import NETWORKS

PRIOR = load_prior()


BLOCKED = ChannelBlockedLayout(16, 4, frozenset({"relu", "add"}))


HEAD = {"backend": "fake", "version": "fake 1", "dtype": "float32", "machine": "here"}


def some(count: int, rules: FusionRules = MOBILE_FUSION, seed: int = 0) -> list:
    return list(itertools.islice(generate_kernels(PRIOR, rules, seed), count))


@pytest.mark.slow
def test_a_description_is_what_capture_finds() -> None:
    import torch

    from nnstretch.capture import load_model
    from nnstretch.capture.torch_export import capture
    from nnstretch.structure.kernel_fusion import fuse_kernels

    module = load_model("torchvision:mobilenet_v3_small").eval()
    for kernel in fuse_kernels(capture(module, torch.zeros(1, 3, 64, 64), "small")):
        again = kernel_of_spec(spec_of_kernel(kernel), kernel.name, kernel.epilogue)
        assert 0 <= kernel.macs - again.macs <= kernel.write_elements, (
            f"{kernel.name}: a bias costs one per output"
        )
        assert replace(again, macs=kernel.macs).key == kernel.key, kernel.name


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_draws_are_consistent_kernels_each_once(seed: int) -> None:
    rules = FusionRules(MOBILE_FUSION.pairs, False, BLOCKED if seed % 2 else None)
    found = some(60, rules, seed)
    assert len({kernel.key for kernel in found}) == len(found)
    assert [k.key for k in some(60, rules, seed)] == [k.key for k in found]
    for kernel in found:
        assert kernel.macs <= MOST_MACS
        assert kernel.write_elements > 0
        assert all(size > 0 for shape in (*kernel.shapes_in, kernel.shape_out) for size in shape)
        if kernel.kind != "reorder":
            assert (
                kernel_of_spec(
                    spec_of_kernel(kernel), kernel.name, kernel.epilogue, kernel.layout
                ).key
                == kernel.key
            )
        if kernel.kind in ("conv", "gconv", "dwconv"):
            assert kernel.cin % kernel.groups == 0
            assert kernel.cout % kernel.groups == 0
        assert all((kernel.kind, op) in rules.pairs for op in kernel.epilogue)


def test_neighbours_stay_near() -> None:
    rng = random.Random(0)
    for kernel in some(120):
        other = perturb_kernel(kernel, MOBILE_FUSION, rng, "near")
        assert other is None or (other.kind == kernel.kind and other.op == kernel.op)
        if other is not None and kernel.macs > 1e6:
            assert kernel.macs / 8 < other.macs < kernel.macs * 8


def test_no_network_of_the_validation_is_in_the_command_that_made_the_prior() -> None:
    """A network's name appears nowhere in the prior, so the command refuses by name."""
    assert len(NETWORKS) == len(set(NETWORKS)) == 20
    parser = load_command("predictors").arguments()
    args = parser.parse_args(["prior", NETWORKS[0], "--out", "prior.csv"])
    with pytest.raises(
        BadInput, match=f"{NETWORKS[0]}, command line, they are kept for validation"
    ):
        args.run(args)


@pytest.mark.parametrize("counts", [False, True])
def test_the_two_operator_test_finds_what_a_backend_fuses(counts: bool) -> None:
    truth = frozenset(
        {
            ("conv", "relu"),
            ("conv", "add"),
            ("dwconv", "hardswish"),
            ("linear", "relu"),
            ("add", "relu"),
        }
    )
    found = fused_pairs(FakeMeter(truth, counts))
    folded = {(kind, "batch_norm") for kind in FOLDED}
    # A sum with a number is a sum for this backend, too.
    assert found.pairs - folded == truth | {("conv", "shift")}
    assert not found.after_activation
    assert found.blocked is None


def test_a_backend_that_cannot_convolve_is_refused() -> None:
    with pytest.raises(
        BadInput, match=r"^cannot profile fake, it refuses a 1x1 convolution over 1x64x56x56$"
    ):
        fused_pairs(FakeMeter(refuses=frozenset({"conv"})))


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("profiles") / "chip"
    ProfileRun(
        ProfileRequest(out, 60, most=1500),
        FakeMeter(frozenset({("conv", "relu"), ("dwconv", "relu")})),
        lambda *_: None,
        watch=quiet_watch(),
    ).run()
    return out


@pytest.mark.slow
def test_a_profile_tells_the_law_of_its_backend(profiled: Path) -> None:
    soc = load_soc(profiled)
    assert soc.calibrated
    name = soc.processors[0].name
    assert soc.rules(name).fuses("conv", "relu")
    assert not soc.rules(name).fuses("conv", "add")
    wrong = [
        soc.predictors[name].estimate(kernel).latency_us / law_us(kernel) - 1
        for kernel in some(200, soc.rules(name), 99)
        if kernel.macs
    ]
    assert sorted(map(abs, wrong))[len(wrong) // 2] < 0.03
    card = (profiled / "CARD.md").read_text()
    assert "fake 1, float32" in card
    assert "- conv: batch_norm, relu\n" in card


@pytest.mark.slow
def test_a_second_run_spends_only_what_is_left(profiled: Path) -> None:
    before = (profiled / NAME).read_text()
    spent_s = sum(json.loads(line)["spent_s"] for line in before.splitlines()[1:])
    result = ProfileRun(
        ProfileRequest(profiled, spent_s),
        FakeMeter(frozenset({("conv", "relu")})),
        lambda *_: None,
        watch=quiet_watch(),
    ).run()
    assert (profiled / NAME).read_text() == before
    assert result.kernels >= 1500
    head = json.loads((profiled / NAME).read_text().splitlines()[0])
    assert head["backend"] == "fake"


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        BadInput, match=r"^cannot write .*/none/chip, no folder .*/none, create it first$"
    ):
        ProfileRun(
            ProfileRequest(tmp_path / "none" / "chip", 1), FakeMeter(), lambda *_: None
        ).run()
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match=r"^cannot write .*/file, it is a file, name a folder$"):
        ProfileRun(ProfileRequest(tmp_path / "file", 1), FakeMeter(), lambda *_: None).run()


def test_two_profiles_do_not_write_one_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nnstretch.files.journal.PATIENCE_S", 0.2)
    with only_writer(tmp_path), pytest.raises(BadInput, match="is written by another process"):
        ProfileRun(ProfileRequest(tmp_path, 1), FakeMeter(), lambda *_: None).run()
    assert list(tmp_path.iterdir()) == []


def test_neighbours_of_tokens_and_transposed_convolutions_keep_their_form() -> None:
    recipes = [
        KernelSpec("linear", "linear", ((1, 197, 768),), (1, 197, 3072)),
        KernelSpec("add", "add", ((1, 197, 768), (1, 197, 768)), (1, 197, 768)),
        KernelSpec("norm", "layer_norm", ((1, 197, 768),), (1, 197, 768)),
        KernelSpec("tconv", "conv_transpose2d", ((1, 96, 20, 20),), (1, 48, 40, 40), 2, 2),
    ]
    rng = random.Random(1)
    for recipe in recipes:
        kernel = kernel_of_spec(recipe, "target")
        other = perturb_kernel(kernel, MOBILE_FUSION, rng, "near")
        assert other is not None
        assert other.key != kernel.key
        assert (other.kind, len(other.shapes_in)) == (kernel.kind, len(kernel.shapes_in))
        assert other.shape_out[0] == 1
        if recipe.kind == "tconv":
            assert other.shape_out[2] == 2 * other.shapes_in[0][2]
        elif recipe.kind != "linear":
            assert {other.shape_out} == set(other.shapes_in)


def test_some_convolutions_end_in_few_outputs_and_some_maps_are_wide() -> None:
    drawn = [kernel for kernel in some(1500) if kernel.kind == "conv" and kernel.shapes_in]
    assert any(kernel.cout < 4 and kernel.cin > 8 for kernel in drawn)
    assert any(kernel.shapes_in[0][3] >= 4 * kernel.shapes_in[0][2] for kernel in drawn)


@given(st.lists(st.sampled_from([1.0, 2.0, 5.0, 5.5]), min_size=1, max_size=400), st.integers(0, 9))
def test_samples_of_equal_sizes_share_a_class(sizes: list[float], seed: int) -> None:
    residual = np.random.default_rng(seed).normal(0, 0.1, len(sizes))
    spread = error_quantiles(residual, np.array(sizes))
    assert spread.above_us[0] == 0.0
    assert list(spread.above_us) == sorted(set(spread.above_us))
    assert len(spread.above_us) == len(spread.low) == len(spread.high)
    assert all(low <= 0 <= high for low, high in zip(spread.low, spread.high, strict=True))
    counts = np.bincount(spread.classes(np.array(sizes)), minlength=len(spread.above_us))
    assert counts.min() >= min(CLASS, len(sizes)), counts


def test_a_class_of_sizes_has_the_samples_that_its_interval_needs() -> None:
    residual = np.random.default_rng(0).normal(0, 0.05, 80)
    below_the_floor = error_quantiles(residual, np.array([5.0] * 79 + [3.0]))
    assert below_the_floor.above_us == (0.0,)
    apart = error_quantiles(residual, np.arange(80.0))
    assert apart.above_us == (0.0, 39.5)
