"""The learned predictor: true to what was measured, honest about its errors, and fast."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import HistGradientBoostingRegressor
from support import synthetic

from nnstretch.errors import BadInput, UnsupportedOp
from nnstretch.kernel import Kernel
from nnstretch.predict import load_soc
from nnstretch.predict.boosted_trees import LEAVES, Forest, Tree
from nnstretch.predict.features import COLUMNS, feature_batch
from nnstretch.predict.learned import Learned, estimate_many
from nnstretch.predict.sampled_range import WIDER
from nnstretch.profile.fitting.fit_predictor import fit
from nnstretch.profile.fitting.trees import TreeSettings, grow_forest
from nnstretch.profile.sampling.sample import Sample
from nnstretch.testing.strategies import KernelForm, KernelSize, kernel_of_form

HELD_OUT = synthetic.samples(600, seed=2)


@pytest.fixture(scope="module")
def learned() -> Learned:
    return fit(synthetic.samples(1200, seed=1), "cpu", "float32")


def test_the_table_says_what_a_kernel_is() -> None:
    one = kernel_of_form(KernelForm("conv", "conv2d", 3), KernelSize(24, 40, 14, 2))
    row = dict(zip(COLUMNS, feature_batch([one], 4).columns[:, 0].tolist(), strict=True))
    assert (row["cin"], row["cout"], row["hw_out"], row["batch"], row["macs"]) == (
        24,
        40,
        196,
        2,
        2 * 196 * 9 * 24 * 40,
    )
    assert (row["read_bytes"], row["write_bytes"], row["weight_bytes"]) == (
        4 * 2 * 196 * 24,
        4 * 2 * 196 * 40,
        4 * (9 * 24 * 40 + 40),
    )
    assert row["padded_macs"] == 2 * 196 * 9 * 32 * 48
    assert row["tile_macs"] == 2 * 196 * 9 * 24 * 64
    assert row["step_macs"] == 2 * 14 * 18 * 9 * 24 * 48
    assert (row["reduction"], row["windows"], row["patches"]) == (
        9 * 24,
        2 * 196 * 9 * 40,
        2 * 196 * 9 * 24,
    )
    assert feature_batch([one], 1).column("read_bytes")[0] == row["read_bytes"] / 4


@pytest.mark.slow
def test_held_out_kernels_are_met_up_to_their_noise(learned: Learned) -> None:
    found = learned.estimate_many([sample.kernel for sample in HELD_OUT])
    measured = np.array([sample.latency_us for sample in HELD_OUT])
    assert (
        np.median(np.abs(found.latency_us / measured - 1)) < 0.06
    )  # two thirds of 5% noise is 0.034
    assert found.latency_us.sum() == pytest.approx(measured.sum(), rel=0.03)


def test_intervals_hold_nine_of_ten_held_out_kernels(learned: Learned) -> None:
    found = learned.estimate_many([sample.kernel for sample in HELD_OUT])
    measured = np.array([sample.latency_us for sample in HELD_OUT])
    assert 0.85 <= np.mean((found.low_us <= measured) & (measured <= found.high_us)) <= 0.95


def test_noise_widens_the_intervals_and_the_error() -> None:
    calm, noisy = (
        fit(synthetic.samples(600, seed=1, noise=noise), "cpu", "float32", growths=())
        for noise in (0.03, 0.3)
    )
    assert noisy.relative_error > 2 * calm.relative_error
    one = kernel_of_form(synthetic.FORMS[0], KernelSize(128, 128, 28, 1))
    quiet, loud = calm.estimate(one), noisy.estimate(one)
    assert loud.error_us / loud.latency_us > 2 * quiet.error_us / quiet.latency_us


@pytest.mark.slow
def test_fitting_repeats_itself() -> None:
    one, other = (fit(synthetic.samples(400, seed=4), "cpu", "float32") for _ in range(2))
    assert one == other
    assert any(family.forest for family in one.families.values())


def test_a_single_slow_round_changes_nothing() -> None:
    quiet = synthetic.samples(300, seed=3)
    loud = [
        replace(sample, latencies_us=(*sample.latencies_us[:-1], 50 * sample.latencies_us[-1]))
        for sample in quiet
    ]
    assert [sample.latency_us for sample in loud] == pytest.approx(
        [sample.latency_us for sample in quiet], rel=0.03
    )


def test_an_operator_of_one_sample_still_costs_its_own() -> None:
    """A single slow one among many fast ones is neither lost nor charged to the others."""
    many = [
        replace(sample, kernel=replace(sample.kernel, epilogue=()))
        for sample in synthetic.samples(400, seed=6)
    ]
    relus = [sample for sample in many if sample.kernel.op == "relu"]
    slow = Sample(
        kernel_of_form(KernelForm("activation", "mish"), KernelSize(256, 256, 40, 1)), (3000.0,) * 5
    )
    found = fit([*relus, slow], "cpu", "float32", growths=())
    assert found.estimate(slow.kernel).latency_us == pytest.approx(3000, rel=0.05)
    assert found.estimate(replace(slow.kernel, op="relu")).latency_us == pytest.approx(
        synthetic.truth_us(slow.kernel), rel=0.15
    )


def test_far_beyond_what_was_measured_the_interval_is_wider(learned: Learned) -> None:
    family = learned.families["conv1x1.blocked"]
    near, far = (
        learned.estimate(kernel_of_form(synthetic.FORMS[0], KernelSize(512, 512, side, 1)))
        for side in (56, 56 * 3)
    )
    assert far.latency_us > 7 * near.latency_us  # 9 times the pixels
    ratio = np.log(far.interval_us[1] / far.latency_us) / np.log(
        near.interval_us[1] / near.latency_us
    )
    assert family.macs[1] * 4 < 512 * 512 * 168**2
    assert ratio == pytest.approx(WIDER)


def test_a_known_follower_behind_another_kind_is_answered_with_a_wider_interval(
    learned: Learned,
) -> None:
    size = KernelSize(256, 256, 14, 1)
    plain, fused = (
        learned.estimate(kernel_of_form(KernelForm("dwconv", "conv2d", 3, "blocked", then), size))
        for then in ((), ("silu",))
    )
    assert np.log(fused.interval_us[1] / fused.latency_us) == pytest.approx(
        WIDER * np.log(plain.interval_us[1] / plain.latency_us)
    )


def test_a_few_samples_make_a_predictor_with_wide_intervals() -> None:
    few = fit(synthetic.samples(200, seed=5)[:3], "cpu", "float32")
    for sample in synthetic.samples(200, seed=5)[:3]:
        found = few.estimate(sample.kernel)
        assert 0 < found.interval_us[0] <= found.latency_us <= found.interval_us[1]


@pytest.mark.parametrize("rounds", [(), (1.0, 0.0), (float("nan"),), (float("inf"), 1.0)])
def test_impossible_measurements_are_refused(rounds: tuple[float, ...]) -> None:
    one = kernel_of_form(synthetic.FORMS[0], KernelSize(16, 16, 7, 1))
    with pytest.raises(BadInput, match="kernel k, needed are positive numbers"):
        fit([Sample(one, rounds)], "cpu", "float32")
    with pytest.raises(BadInput, match="0 samples, processor cpu"):
        fit([], "cpu", "float32")


@pytest.mark.slow
def test_two_hundred_thousand_kernels_a_second(learned: Learned) -> None:
    many = [replace(sample.kernel, name=f"k{i}") for i in range(50) for sample in HELD_OUT]
    spent = []
    for _ in range(4):
        start = time.thread_time()
        learned.estimate_many(many)
        spent.append(time.thread_time() - start)
    assert len(many) / min(spent) > 200_000


def test_an_empty_batch_is_an_empty_answer(learned: Learned) -> None:
    assert learned.estimate_many([]).latency_us.tolist() == []
    assert estimate_many(load_soc("mi9").predictors["cpu"], []).latency_us.tolist() == []


def test_any_predictor_answers_for_many() -> None:
    class Loop:
        processor = "npu"

        def estimate(self, one: Kernel) -> Any:
            return load_soc("mi9").predictors["cpu"].estimate(one)

    many = [
        kernel_of_form(KernelForm("conv", "conv2d", 3), KernelSize(16 * i, 32, 14, 1))
        for i in range(1, 5)
    ]
    assert estimate_many(Loop(), many).latency_us == pytest.approx(
        estimate_many(load_soc("mi9").predictors["cpu"], many).latency_us
    )


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    leaves=st.integers(2, LEAVES),
    trees=st.integers(1, 40),
    values=st.sampled_from((1, 2, 50, 254, 255, 256, 2000)),
)
def test_trees_answer_exactly_as_the_library_that_grew_them(
    seed: int, leaves: int, trees: int, values: int
) -> None:
    rng = np.random.default_rng(seed)
    rows, wanted = rng.integers(0, values, (700, 4)).astype(float), rng.normal(size=700)
    weight = rng.uniform(0.1, 1, 700)
    grown = HistGradientBoostingRegressor(
        max_iter=trees,
        max_leaf_nodes=leaves,
        min_samples_leaf=2,
        monotonic_cst=[1, 0, 0, 0],
        early_stopping=False,
        random_state=0,
    )
    grown.fit(rows, wanted, sample_weight=weight)
    growth = TreeSettings(1.0, trees, leaves, least=2)
    forest = grow_forest(list(rows.T), wanted, weight, growth, [1, 0, 0, 0])
    asked = np.vstack([rows, rng.uniform(-10, 1.2 * values, (1500, 4)), rows + 1e-12])
    assert np.array_equal(forest.predict(asked.T), grown.predict(asked))


LEAF = Tree((-1,), (0.0,), (0,), (0,), (1.5,))
FORKED = {
    "feature": (0, -1, -1),
    "threshold": (2.0, 0.0, 0.0),
    "left": (1, 0, 0),
    "right": (2, 0, 0),
    "value": (0.0, 1.0, 2.0),
}


def test_a_tree_of_one_leaf_is_a_number() -> None:
    assert Forest(1.0, (LEAF, Tree(**FORKED))).predict(np.array([[1.0, 2.0, 2.5]])).tolist() == [
        3.5,
        3.5,
        4.5,
    ]
    assert Forest(1.0, ()).predict(np.array([[1.0, 2.0]])).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"left": (0, 0, 0)}, "each node but the first needs one parent"),
        ({"right": (1, 0, 0)}, "each node but the first needs one parent"),
        ({"right": (7, 0, 0)}, "each node but the first needs one parent"),
        ({"right": (-1, 0, 0)}, "each node but the first needs one parent"),
        ({"value": (0.0, 1.0)}, "needed is one length"),
        ({"value": (0.0, float("nan"), 1.0)}, "not finite"),
        (dict.fromkeys(FORKED, ()), "needed is one length"),
    ],
)
def test_a_malformed_tree_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Tree(**{**FORKED, **changed})


def test_a_cycle_between_nodes_is_refused() -> None:
    with pytest.raises(BadInput, match=r"node 3 has child 1.*children follow their parents"):
        Tree(
            (0, 0, -1, 0, -1, -1, -1),
            (0.0,) * 7,
            (2, 3, 0, 1, 0, 0, 0),
            (4, 5, 0, 6, 0, 0, 0),
            (0.0,) * 7,
        )


def test_a_blocked_convolution_of_few_channels_is_another_kernel() -> None:
    """The first convolution of a network, alone in its batch and beside others."""
    first, other = (
        kernel_of_form(KernelForm("conv", "conv2d", 3, "blocked"), KernelSize(cin, 32, 28, 1))
        for cin in (3, 32)
    )
    found = fit([Sample(first, (200.0,) * 5), Sample(other, (900.0,) * 5)], "cpu", "float32")
    assert sorted(found.families) == ["conv.blocked", "conv.narrow"]
    assert found.estimate_many([first]).latency_us.tolist() == pytest.approx([200], rel=0.01)
    assert found.estimate_many([other, first]).latency_us.tolist() == pytest.approx(
        [900, 200], rel=0.01
    )
    wide = fit([Sample(other, (900.0,) * 5)], "cpu", "float32")
    widths: Any = np.array([32.0, 3.0])
    with pytest.raises(UnsupportedOp, match=r"kind 'conv' .narrow. was never measured"):
        wide.estimate(first)
    with pytest.raises(UnsupportedOp, match=r"kind 'conv' .narrow. was never measured"):
        wide.estimate_grid(replace(other, cin=widths))
