"""Workers share a study.

Exactly as many trials as wanted, none lost or counted twice, whoever dies on the way.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState, create_trial
from support.study_toys import STRETCHER, Told, chip, latency_ms, memory, setting, states, worker

from nnstretch.errors import BadInput, Diverged, Mismatch
from nnstretch.files.plan_yaml import plan_text, read_plan
from nnstretch.study.artifacts import ArtifactWriter
from nnstretch.study.config import (
    EXACT_OPTIMUM_KEY,
    exact_optimum_json,
    open_study,
    search_optimum,
    store_exact_optimum,
)
from nnstretch.study.evaluate import Evaluation
from nnstretch.study.objective import Pruned, should_prune_training
from nnstretch.study.result import (
    best_trials,
    dominates,
    feasible_trials,
    optimality_gap,
    result_json,
)
from nnstretch.study.samplers import SAMPLERS, make_sampler
from nnstretch.study.trial_leases import (
    RETRY_HISTORY_KEY,
    finished_trials,
    mark_trial_failed,
    requeue_lost,
)

TESTS = Path(__file__).parents[1]


# Workers


def test_a_worker_runs_as_many_trials_as_are_wanted_and_another_run_only_what_is_missing(
    tmp_path: Path,
) -> None:
    journal = str(tmp_path / "study.journal")
    worker(journal, 6).run()
    worker(journal, 6, what=lambda verdict: pytest.fail("nothing is left to do")).run()
    last = worker(journal, 9, seed=1)
    last.run()
    assert states(last.study) == {"COMPLETE": 9}
    assert all(
        t.constraints.keys() >= {"cost_amortised", "no_stragglers"} for t in last.study.trials
    )


@pytest.mark.slow
def test_a_worker_killed_in_mid_trial_loses_nothing(tmp_path: Path) -> None:
    """Two processes, one journal.

    SIGKILL hits one of them while it runs a trial and the other goes on.
    """
    journal, marker, wanted = str(tmp_path / "study.journal"), tmp_path / "marker", 12
    toys = [sys.executable, "-m", "support.study_toys"]
    victim = subprocess.Popen([*toys, journal, str(marker), str(wanted)], cwd=TESTS)
    try:
        deadline = time.monotonic() + 60
        while not marker.exists() and time.monotonic() < deadline and victim.poll() is None:
            time.sleep(0.02)
        assert marker.exists()
        survivor = worker(journal, wanted, lease_s=1.5, seed=2)
        hanging = [t for t in survivor.study.trials if t.state == TrialState.RUNNING]
        assert len(hanging) == 1
        for _ in range(25):  # longer than a lease, but the worker is alive and its trial beats
            assert not survivor.fail_stale_trials(survivor.study.trials)
            time.sleep(0.1)
    finally:
        victim.kill()
        victim.wait()
    survivor.target_trials = wanted
    survivor.run()
    trials = survivor.study.trials
    assert len(finished_trials(trials)) == wanted
    assert trials[hanging[0].number].state == TrialState.FAIL
    repeats = [t for t in trials if t.system_attrs.get(RETRY_HISTORY_KEY) == [hanging[0].number]]
    assert [t.state for t in repeats] == [TrialState.COMPLETE]
    assert repeats[0].params == hanging[0].params
    parameters = [json.dumps(t.params, sort_keys=True) for t in finished_trials(trials)]
    assert len(set(parameters)) == wanted
    assert states(survivor.study) == {"COMPLETE": wanted, "FAIL": 1}


@pytest.mark.slow
def test_who_waits_for_a_trial_of_another_worker_says_so_once() -> None:
    storage = memory()
    survivor = worker(storage, 2, lease_s=3.0)
    survivor.study.ask()  # of a worker that dies here
    told: list[int] = []
    survivor.tell_waiting = told.append
    survivor.run()
    assert told == [1]
    assert len(finished_trials(survivor.study.trials)) == 2


def test_a_worker_that_was_only_slow_drops_its_result() -> None:
    storage = memory()
    slow = worker(storage, 1)

    def taken_for_dead(verdict: Evaluation) -> dict[str, float]:
        slow.objectives = Told(latency_ms)  # type: ignore[assignment]
        mark_trial_failed(storage, slow.study.trials[0]._trial_id)
        requeue_lost(slow.study)
        return latency_ms(verdict)

    slow.objectives = Told(taken_for_dead)  # type: ignore[assignment]
    slow.run()
    assert [t.state.name for t in slow.study.trials] == ["FAIL", "COMPLETE"]
    assert slow.study.trials[0].params == slow.study.trials[1].params


def test_an_interrupted_trial_is_run_again_first(tmp_path: Path) -> None:
    storage = memory()
    calls: list[str] = []

    def interrupted(verdict: Evaluation) -> dict[str, float]:
        calls.append(str(verdict.plan))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return latency_ms(verdict)

    stopped = worker(storage, 5, interrupted)
    with pytest.raises(KeyboardInterrupt):
        stopped.run()
    assert result_json(stopped.study, True)["trials"] == 2
    assert states(stopped.study) == {"COMPLETE": 2, "FAIL": 1, "WAITING": 1}
    stopped.run()
    assert states(stopped.study) == {"COMPLETE": 5, "FAIL": 1}
    assert calls[3] == calls[2]
    assert result_json(stopped.study, True)["repeated"] == 1


def test_a_plan_that_cannot_be_exported_is_pruned_and_an_error_of_the_set_up_is_raised() -> None:
    def refused(verdict: Evaluation) -> dict[str, float]:
        raise Mismatch("numbers differ")

    def wrong(verdict: Evaluation) -> dict[str, float]:
        raise BadInput("no such recipe")

    one = worker(memory(), 3, refused)
    one.run()
    assert states(one.study) == {"PRUNED": 3}
    assert result_json(one.study, True)["feasible"] == 0
    assert one.study.trials[0].user_attrs["refused"] == "numbers differ"
    other = worker(memory(), 3, wrong)
    with pytest.raises(BadInput, match="no such recipe"):
        other.run()
    assert states(other.study) == {"FAIL": 1, "WAITING": 1}


def test_a_plan_whose_training_diverges_does_not_end_the_study() -> None:
    def diverging(verdict: Evaluation) -> dict[str, float]:
        raise Diverged("training diverged, step 3")

    one = worker(memory(), 2, diverging)
    one.run()
    assert states(one.study) == {"PRUNED": 2}
    assert one.study.trials[0].user_attrs["refused"] == "training diverged, step 3"


def test_infeasible_plans_are_not_trained_and_equal_plans_only_once() -> None:
    trained: list[str] = []

    def train(verdict: Evaluation) -> dict[str, float]:
        assert verdict.feasible
        trained.append(str(verdict.plan))
        return {"accuracy": len(trained) / 100}

    one = worker(memory(), 40, train, objective="accuracy")
    one.run()
    assert len(trained) == len(set(trained)) > 0
    assert states(one.study)["PRUNED"] > 0
    assert all(t.user_attrs["refused"] for t in one.study.trials if t.state == TrialState.PRUNED)


def test_a_training_behind_the_others_is_pruned() -> None:
    def behind(verdict: Evaluation) -> dict[str, float]:
        raise Pruned

    one = worker(memory(), 2, behind)
    one.run()
    assert states(one.study) == {"PRUNED": 2}


def test_a_training_is_pruned_when_faster_ones_were_better_at_its_epoch() -> None:
    fast = [(1.0, [0.5, 0.9])] * 4
    assert should_prune_training(0.8, 2, 2.0, fast)
    assert not should_prune_training(0.95, 2, 2.0, fast)
    assert not should_prune_training(0.8, 2, 0.5, fast), "nobody is as fast"
    assert not should_prune_training(0.8, 2, 2.0, fast[:3]), "too few to tell"
    assert not should_prune_training(0.8, 3, 2.0, fast), "nobody trained so long"


# The study, its optimum, its result


def test_a_study_of_another_setting_is_refused_by_name() -> None:
    storage = memory()
    open_study(storage, "s", setting())
    open_study(storage, "s", setting())
    for changed, word in (
        ({"soc": "mi9"}, "soc"),
        ({"processors": ("cpu",)}, "processors"),
        ({"model": "other"}, "model"),
    ):
        with pytest.raises(BadInput, match=f"another {word}"):
            open_study(storage, "s", setting(**changed))
    foreign = optuna.create_study(storage=storage, study_name="foreign")
    foreign.add_trial(create_trial(value=1.0))
    with pytest.raises(BadInput, match="not made by nnstretch"):
        open_study(storage, "foreign", setting())


def test_a_study_starts_with_the_best_plans_of_the_search_and_reaches_its_optimum() -> None:
    one = worker(memory(), 6)
    for _ in range(2):  # the second call finds that it is known
        best = search_optimum(one.config, STRETCHER, chip(), 3)
        store_exact_optimum(one.study, one.space, best, 3)
    assert len(one.study.trials) == 3
    one.run()
    result = result_json(one.study, True)
    assert result["gap_to_optimum"] == pytest.approx(0, abs=1e-12)
    assert result["best"][0]["trial"] == 0
    latencies = [t.values[0] for t in one.study.trials[:3]]
    assert latencies == sorted(latencies)
    assert latencies[0] == pytest.approx(result["optimum"]["latency_ms"])


def test_the_gap_is_null_without_a_proof_or_without_predictions() -> None:
    one = worker(memory(), 12)
    one.run()
    trials, exact = one.study.trials, {"latency_ms": 0.001, "optimal": True}
    assert feasible_trials(trials)
    assert optimality_gap(trials, exact, True) > 0  # type: ignore[operator]
    assert optimality_gap(trials, exact | {"optimal": False}, True) is None
    assert optimality_gap(trials, exact, False) is None
    assert optimality_gap(trials, None, True) is None
    assert optimality_gap([], exact, True) is None


def test_of_two_objectives_the_front_is_the_best() -> None:
    study = optuna.create_study(directions=["minimize", "maximize"])
    for values, broken in (((1, 0.5), 0), ((2, 0.9), 0), ((3, 0.8), 0), ((0.5, 0.99), 1)):
        study.add_trial(create_trial(values=values, constraints={"c": broken}))
    assert [t.number for t in best_trials(study.trials, study.directions)] == [0, 1]
    assert dominates((1, 0.5), (1, 0.4), study.directions)
    assert not dominates((1, 0.5), (1, 0.5), study.directions)


def test_artifacts_hang_on_every_best_so_far(tmp_path: Path) -> None:
    from optuna.artifacts import get_all_artifact_meta

    one = worker(memory(), 15)
    one.artifact_writer = ArtifactWriter(tmp_path / "artifacts", one.evaluator)
    one.run()
    best, kept = float("inf"), 0
    for trial in one.study.trials:
        metas = {m.filename: m for m in get_all_artifact_meta(trial, storage=one.storage)}
        if trial in feasible_trials(one.study.trials) and trial.values[0] < best:
            best, kept = trial.values[0], kept + 1
            assert set(metas) == {"plan.yaml", "trace.json", "plan.svg"}
            files = {
                name: tmp_path / "artifacts" / meta.artifact_id for name, meta in metas.items()
            }
            assert plan_text(read_plan(files["plan.yaml"])) == trial.user_attrs["plan"]
            spans = [
                e
                for e in json.loads(files["trace.json"].read_text())["traceEvents"]
                if e["ph"] == "X"
            ]
            ends_us = max(e["ts"] + e["dur"] for e in spans)
            assert ends_us / 1000 == pytest.approx(trial.values[0], rel=1e-3)
            assert metas["plan.svg"].mimetype == "image/svg+xml"
            assert files["plan.svg"].read_text().startswith("<svg xmlns=")
        else:
            assert not metas
    assert kept


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_takes_the_space_and_its_limits(name: str) -> None:
    one = worker(memory(), 11)
    one.study.sampler = make_sampler(name, 0)
    one.run()
    assert states(one.study) == {"COMPLETE": 11}


def test_the_optimum_is_kept_in_milliseconds() -> None:
    from nnstretch.stretch.search.search import search

    found = search(STRETCHER, chip(), ("cpu", "dsp"), merges=("concat",))
    assert exact_optimum_json(found)["latency_ms"] == found.plans[0].trial.latency_us / 1000
    assert EXACT_OPTIMUM_KEY == "exact"
