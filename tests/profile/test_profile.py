"""Profiling: what is drawn, what is probed, what survives an interruption, and what comes out of a
known backend.
"""

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

from nnstretch.errors import BadInput, BrokenFile
from nnstretch.kernel import MOBILE_FUSION, ChannelBlockedLayout, FusionRules
from nnstretch.predict import load_soc
from nnstretch.profile.fitting.error_quantiles import error_quantiles
from nnstretch.profile.fusion_probe import FOLDED, fused_pairs
from nnstretch.profile.machine import PinnedProcessor, clusters, parse_processors
from nnstretch.profile.profile_request import ProfileRequest
from nnstretch.profile.profile_run import ProfileRun
from nnstretch.profile.sampling.journal import NAME, open_journal
from nnstretch.profile.sampling.kernel_generator import (
    MOST_MACS,
    generate_kernels,
    load_prior,
    perturb_kernel,
)
from nnstretch.profile.sampling.kernel_sampler import KernelSampler
from nnstretch.profile.sampling.kernel_spec import KernelSpec, kernel_of_spec, spec_of_kernel
from nnstretch.profile.sampling.medleys import kernel_groups
from nnstretch.profile.sampling.sample import Sample, normalize_disturbed
from nnstretch.profile.validation import NETWORKS

PRIOR = load_prior()
BLOCKED = ChannelBlockedLayout(16, 4, frozenset({"relu", "add"}))
HEAD = {"backend": "fake", "version": "fake 1", "dtype": "float32", "machine": "here"}


def some(count: int, rules: FusionRules = MOBILE_FUSION, seed: int = 0) -> list:
    return list(itertools.islice(generate_kernels(PRIOR, rules, seed), count))


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


def test_medleys_hold_kernels_over_maps_of_one_size() -> None:
    found = some(240)
    groups = kernel_groups(found)
    assert sorted(k.name for group in groups for k in group) == sorted(k.name for k in found)
    moved = [[kernel.read_elements + kernel.write_elements for kernel in group] for group in groups]
    spans = sorted((min(group), max(group)) for group in moved)
    assert spans[0][1] < spans[-1][0]


def gathering(meter: FakeMeter, folder: Path, samples: list[Sample] | None = None) -> KernelSampler:
    journal, _ = open_journal(folder, HEAD)
    return KernelSampler(
        meter, MOBILE_FUSION, PRIOR, journal, 0, [] if samples is None else samples, quiet_watch()
    )


def test_a_disturbed_medley_is_measured_again(tmp_path: Path) -> None:
    meter = FakeMeter(disturbed=frozenset({3}))
    found = gathering(meter, tmp_path)
    for _ in range(3):
        found.measure_kernels(some(5))
    samples = found.measure_kernels(some(5))
    assert found.disturbed == 1
    assert [s.latency_us for s in samples] == pytest.approx([law_us(k) for k in some(5)])


def test_kernels_that_a_backend_refuses_are_counted_and_left_out(tmp_path: Path) -> None:
    found = gathering(FakeMeter(refuses=frozenset({"dwconv"})), tmp_path)
    kernels = some(60)
    samples = found.measure_kernels(kernels)
    assert {s.kernel.kind for s in samples} == {k.kind for k in kernels} - {"dwconv"}
    assert sum(found.refused.values()) == sum(k.kind == "dwconv" for k in kernels)


def test_adaptive_draws_stand_near_what_is_told_badly(tmp_path: Path) -> None:
    kernels = some(200)
    found = gathering(FakeMeter(), tmp_path, [Sample(kernel, (1.0,)) for kernel in kernels])
    chosen = found.draw_adaptively(
        iter(some(300, seed=7)),
        lambda samples: [1.0 if s.kernel.kind == "linear" else 0.0 for s in samples],
    )
    assert sum(k.kind == "linear" and k.name.startswith("near") for k in chosen) > 10
    assert len({k.key for k in chosen}) > len(chosen) - 5


def test_samples_of_slow_moments_are_steadied() -> None:
    kernel = some(1)[0]
    usual = [Sample(kernel, (10.0,), 100.0)] * 9
    slow = [
        Sample(kernel, (10.5,), 105.0),
        Sample(kernel, (14.0,), 140.0),
        Sample(kernel, (40.0,), 400.0),
    ]
    assert [round(s.latency_us, 2) for s in normalize_disturbed([*usual, *slow])] == [10.0] * 9 + [
        10.5,
        11.2,
        26.67,
    ]
    assert normalize_disturbed([usual[0], Sample(kernel, (5.0,))])[1].latency_us == 5.0


def test_a_journal_goes_on_where_a_kill_left_it(tmp_path: Path) -> None:
    samples = [Sample(kernel, (1.0, 2.0, 3.0)) for kernel in some(6)]
    journal, found = open_journal(tmp_path, HEAD)
    assert found == {}
    journal.append(0, samples[:3], 1.5)
    journal.append(1, samples[3:], 2.0)
    with (tmp_path / NAME).open("a") as file:
        file.write('{"cluster": 0, "spent_s": 1.0, "samp')
    again, found = open_journal(tmp_path, HEAD)
    assert again.spent_s == 3.5
    assert found == {0: samples[:3], 1: samples[3:]}
    again.append(0, samples[3:4], 1.0)
    assert len(open_journal(tmp_path, HEAD)[1][0]) == 4


def test_a_journal_of_another_backend_is_refused(tmp_path: Path) -> None:
    open_journal(tmp_path, HEAD)[0].append(0, [Sample(some(1)[0], (1.0,))], 1.0)
    with pytest.raises(
        BrokenFile,
        match=(
            r"^backend is 'fake', .*samples\.jsonl line 1, this profile has 'litert'; take another"
            r" folder or --fresh$"
        ),
    ):
        open_journal(tmp_path, HEAD | {"backend": "litert"})


def test_a_journal_whose_first_line_was_cut_off_starts_anew(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text('{"format": 1, "back')
    journal, found = open_journal(tmp_path, HEAD)
    assert found == {}
    journal.append(0, [Sample(some(1)[0], (1.0,))], 1.0)
    assert len(open_journal(tmp_path, HEAD)[1][0]) == 1


@pytest.mark.parametrize(
    "line",
    [
        "nonsense\n",
        "[]\n",
        '{"cluster": 0}\n',
        '{"cluster": 0, "spent_s": 1, "samples": [{"kernel": {}}]}\n',
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str) -> None:
    open_journal(tmp_path, HEAD)[0].append(0, [Sample(some(1)[0], (1.0,))], 1.0)
    with (tmp_path / NAME).open("a") as file:
        file.write(line)
    with pytest.raises(BrokenFile, match=r"samples\.jsonl line 3"):
        open_journal(tmp_path, HEAD)


def core(root: Path, index: int, capacity: str = "", khz: str = "") -> None:
    folder = root / f"cpu{index}" / "cpufreq"
    folder.mkdir(parents=True)
    if capacity:
        (folder.parent / "cpu_capacity").write_text(capacity)
    if khz:
        (folder / "cpuinfo_max_freq").write_text(khz)


def test_equal_cores_are_one_cluster_and_the_fastest_comes_first(tmp_path: Path) -> None:
    for index, (capacity, khz) in enumerate([("160", "1800000")] * 4 + [("1024", "2841600")] * 2):
        core(tmp_path, index, capacity, khz)
    big, little = clusters(tmp_path, (0, 1, 2, 3, 4, 5))
    assert (big.cores, big.max_khz) == ((4, 5), 2841600)
    assert little.cores == (0, 1, 2, 3)
    assert parse_processors(None, (big, little)) == (
        PinnedProcessor("cpu0", 4, 0),
        PinnedProcessor("cpu1", 0, 1),
    )
    assert parse_processors("big=5,small=2", (big, little)) == (
        PinnedProcessor("big", 5, 0),
        PinnedProcessor("small", 2, 1),
    )


def test_a_machine_that_tells_nothing_has_one_cluster(tmp_path: Path) -> None:
    core(tmp_path, 0)
    core(tmp_path, 1, "garbage", "?")
    (only,) = clusters(tmp_path, (0, 1))
    assert (only.cores, only.max_khz) == ((0, 1), None)
    assert [p.name for p in parse_processors(None, (only,))] == ["cpu0", "cpu1"]


def test_a_cuda_device_is_a_processor_where_there_is_one(tmp_path: Path) -> None:
    core(tmp_path, 0)
    (only,) = clusters(tmp_path, (0,))
    assert parse_processors(None, (only,), cuda=1) == (
        PinnedProcessor("cpu0", 0, 0),
        PinnedProcessor("gpu", 0, 1000, "cuda:0"),
    )
    assert parse_processors("fast=cuda:1,host=0", (only,), cuda=2) == (
        PinnedProcessor("host", 0, 0),
        PinnedProcessor("fast", 0, 1001, "cuda:1"),
    )
    with pytest.raises(BadInput, match=r"cores among 0; no CUDA device is at hand$"):
        parse_processors("cpu0=0,gpu=cuda", (only,))
    with pytest.raises(BadInput, match=r"at least one must be a core: it feeds the others$"):
        parse_processors("gpu=cuda", (only,), cuda=1)


@pytest.mark.parametrize(
    "spec",
    [
        "a=9",
        "a",
        "a=0,a=1",
        "a=0,b=0",
        "=0",
        "a=-1",
        "",
        "a=\u00b2",
        "soc=0",
        "../x=0",
        "a/b=0",
        "a=cuda",
    ],
)
def test_processors_that_are_not_there_are_refused(tmp_path: Path, spec: str) -> None:
    core(tmp_path, 0)
    core(tmp_path, 1)
    with pytest.raises(BadInput, match=r"^--processors is .*, command line, "):
        parse_processors(spec, clusters(tmp_path, (0, 1)))


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
