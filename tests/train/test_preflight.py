"""What lies in the folder of a training that begins, and what the machine it begins on says against
it.
"""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.trainings import SMALL, branched_plan, pretend_slurm, small_net, write, write_images
from torch import nn

from nnstretch.capture import load_model
from nnstretch.cli import main as command
from nnstretch.errors import BadInput, BrokenFile
from nnstretch.stretch import stretch, write_plan
from nnstretch.train import callbacks as records
from nnstretch.train import fit
from nnstretch.train.checkpoints import SafeCheckpoint
from nnstretch.train.classifier import Classifier
from nnstretch.train.data import open_dataset, prepare_images
from nnstretch.train.data.batches import ImageBatch
from nnstretch.train.recipe import DataSettings, TrainerSettings
from nnstretch.train.trainer import make_trainer
from nnstretch.train.training_folder import FIRST_BEST_WEIGHTS_FILE, FIRST_STATE_FILE

ONE_EPOCH = replace(SMALL, trainer=replace(SMALL.trainer, max_epochs=1))


LOGGED = replace(ONE_EPOCH, trainer=replace(ONE_EPOCH.trainer, tensorboard=True))


def held(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("inner", [".", "cat", "new/trained"])
def test_results_are_not_written_among_the_images(tmp_path: Path, inner: str) -> None:
    root = write_images(tmp_path / "photos", {"cat": 4, "dog": 4})
    before = held(root)
    data = DataSettings(name="folder", root=str(root), image_px=16, batch_images=4)
    with pytest.raises(BadInput, match="it lies among the images of"):
        fit(small_net(2), replace(ONE_EPOCH, data=data), root / inner, progress=False)
    assert held(root) == before


class Stopped(Exception):
    pass


def no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def stopped(folder: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """A training that ends in its first step."""

    def stop(*_: object) -> None:
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(Classifier, "training_step", stop)
        with pytest.raises(Stopped):
            fit(small_net(), replace(LOGGED, seed=seed), folder, progress=False)


def test_curves_that_a_logger_writes_late_go_with_the_training_that_failed(tmp_path: Path) -> None:
    class LateLogger:
        def finalize(self, status: str) -> None:
            assert status == "failed"
            (tmp_path / "logs").mkdir()
            (tmp_path / "logs" / "events.out.tfevents.1").write_bytes(b"late")

    trainer = SimpleNamespace(is_global_zero=True, loggers=[LateLogger()])
    records.Records(tmp_path).on_exception(trainer, None, Stopped())
    assert held(tmp_path) == {}


@pytest.mark.slow
def test_results_are_whole_until_others_take_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    fit(small_net(), LOGGED, tmp_path, progress=False)
    before = held(tmp_path)
    assert any("events" in name for name in before)
    stopped(tmp_path, monkeypatch, seed=1)
    with monkeypatch.context() as patch:
        patch.setattr("nnstretch.stretch.weights.weights_file.save", no_room)
        with pytest.raises(BadInput, match=r"cannot write .*No space left"):
            fit(small_net(), replace(LOGGED, seed=1), tmp_path, progress=False)
    assert held(tmp_path) == before
    result = fit(small_net(seed=1), ONE_EPOCH, tmp_path, progress=False)
    assert {*held(tmp_path)} == {name for name in before if "events" not in name}
    assert all(
        (tmp_path / name).read_bytes() != before[name]
        for name in ("weights.safetensors", "best.safetensors", "resume.safetensors")
    )
    assert result.best.read_bytes() == result.checkpoint.read_bytes()


@pytest.mark.slow
def test_of_another_training_nothing_stays_behind_the_first_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = branched_plan(tmp_path)
    fit(stretch(load_model(plan.model), plan), ONE_EPOCH, tmp_path / "out", progress=False)
    early = replace(SMALL, trainer=replace(SMALL.trainer, save_every_steps=4))
    step = Classifier.training_step

    def stop(self: Classifier, batch: ImageBatch, number: int) -> torch.Tensor:
        if number == 5:
            raise Stopped
        return step(self, batch, number)

    with monkeypatch.context() as patch:
        patch.setattr(Classifier, "training_step", stop)
        with pytest.raises(Stopped):
            fit(small_net(), early, tmp_path / "out", progress=False)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "recipe.yaml",
        "resume.safetensors",
    }
    assert fit(small_net(), early, tmp_path / "out", resume=True, progress=False).epochs == 2


@pytest.mark.slow
@pytest.mark.parametrize("fails_at", ["settle", "best.safetensors", "replace"])
def test_a_first_save_that_is_cut_off_leaves_no_state(
    fails_at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state without its recipe or its best weights could neither be gone on from nor be
    replaced.
    """

    def cut_off(*given: object) -> None:
        if fails_at != "best.safetensors" or given[1] == tmp_path / FIRST_BEST_WEIGHTS_FILE:
            raise Stopped

    fit(small_net(), ONE_EPOCH, tmp_path, progress=False)
    places = {"settle": (records.Records, "settle"), "best.safetensors": (records, "save_weights")}
    with monkeypatch.context() as patch:
        if fails_at == "replace":
            moved = type(tmp_path).replace
            patch.setattr(
                type(tmp_path),
                "replace",
                lambda path, to: cut_off() if path.name == FIRST_STATE_FILE else moved(path, to),
            )
        else:
            patch.setattr(*places[fails_at], cut_off)
        with pytest.raises(Stopped):
            fit(small_net(), replace(ONE_EPOCH, seed=1), tmp_path, progress=False)
    assert (tmp_path / "resume.safetensors").exists() == (fails_at != "replace")  # the older one
    assert not [*tmp_path.glob(".*"), *tmp_path.glob("*.first")]
    assert fit(small_net(), replace(ONE_EPOCH, seed=1), tmp_path, progress=False).epochs == 1


def test_logs_that_no_training_left_stay(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    mine = write(tmp_path / "logs" / "events.out.tfevents.1.host.1.0", "mine")
    fit(small_net(), ONE_EPOCH, tmp_path, progress=False)
    assert mine.read_text() == "mine"


def test_tensorboard_sees_the_curves_of_one_training(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    fit(small_net(), LOGGED, tmp_path, progress=False)
    first = {path.name for path in (tmp_path / "logs").glob("events*")}
    fit(small_net(), LOGGED, tmp_path, progress=False)
    second = {path.name for path in (tmp_path / "logs").glob("events*")}
    assert len(first) == len(second) == 1
    assert first != second


@pytest.mark.slow
def test_a_plan_in_the_folder_keeps_its_comments(tmp_path: Path) -> None:
    plan, out = branched_plan(tmp_path), tmp_path / "out"
    out.mkdir()
    write_plan(out / "plan.yaml", plan)
    text = "# mine\n" + (out / "plan.yaml").read_text()
    (out / "plan.yaml").write_text(text)
    for _ in range(2):
        fit(stretch(load_model(plan.model), plan), ONE_EPOCH, out, progress=False)
    assert (out / "plan.yaml").read_text() == text
    (out / "plan.yaml").write_text("no plan: [")
    fit(stretch(load_model(plan.model), plan), ONE_EPOCH, out, progress=False)
    assert (out / "plan.yaml").read_text() == text.removeprefix("# mine\n")


class Refuses(nn.Module):
    """In training, by the words of PyTorch."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.net, self._error = small_net(), error

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training:
            raise self._error
        return self.net(images)


@pytest.mark.parametrize(
    ("error", "means"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
            "memory ran out, take smaller data.batch_images",
        ),
        (
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory:"
                " you tried to"
            ),
            "memory ran out",
        ),
        (MemoryError("Unable to allocate 1.07 TiB for an array"), "memory ran out"),
        (
            RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error."),
            "more shared memory",
        ),
        (
            RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly"),
            "take fewer data.workers, or 0",
        ),
        (
            RuntimeError(
                "max_pool3d_backward_out_cuda does not have a deterministic implementation, but"
            ),
            "set trainer.deterministic to false",
        ),
        (
            RuntimeError(
                "No working C++ compiler found in torch._inductor.config.cpp.cxx: (None, 'g++')"
            ),
            "trainer.compile needs a C.. compiler",
        ),
    ],
)
def test_missing_hardware_is_refused_in_one_line(
    error: Exception, means: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=f"training into .* stopped, .*{means}"):
        fit(Refuses(error), ONE_EPOCH, tmp_path, progress=False)


def test_more_images_than_memory_holds_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def too_many(*_: object) -> None:
        raise MemoryError("Unable to allocate 1.07 TiB for an array")

    monkeypatch.setattr("nnstretch.train.data.shapes.open_shapes", too_many)
    assert command(["train", "shapes", "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "data set shapes does not fit into memory, Unable to allocate 1.07 TiB" in said
    assert not (tmp_path / "out").exists()


def test_slurm_gets_no_files_but_the_runs_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lightning would save into the current folder and requeue on a signal, and go on from what it
    finds there.
    """
    pretend_slurm(monkeypatch, NTASKS=1)
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "hpc_ckpt_1.ckpt", "of another run")
    assert (
        make_trainer(
            TrainerSettings(accelerator="cpu"), logger=False
        )._accelerator_connector.cluster_environment.auto_requeue
        is False
    )
    assert fit(small_net(), ONE_EPOCH, tmp_path / "out", progress=False).epochs == 1


def test_a_run_goes_on_in_the_arithmetic_it_began_in(tmp_path: Path) -> None:
    """`auto` is another one on another machine."""
    auto = replace(ONE_EPOCH, trainer=replace(ONE_EPOCH.trainer, precision="auto"))
    fit(small_net(), auto, tmp_path, progress=False)
    state = SafeCheckpoint().load_checkpoint(tmp_path / "resume.safetensors")
    longer = replace(
        auto, trainer=replace(auto.trainer, max_epochs=2, precision=state["precision"])
    )
    assert fit(small_net(), longer, tmp_path, resume=True, progress=False).epochs == 2
    SafeCheckpoint().save_checkpoint(state | {"precision": "fp16"}, tmp_path / "resume.safetensors")
    with pytest.raises(
        BadInput,
        match=r"cannot resume, it began in fp16, trainer.precision auto is .* here, ask for fp16",
    ):
        fit(small_net(), auto, tmp_path, resume=True, progress=False)
    SafeCheckpoint().save_checkpoint(
        {key: value for key, value in state.items() if key != "precision"},
        tmp_path / "resume.safetensors",
    )
    with pytest.raises(BrokenFile, match="another version"):
        fit(small_net(), auto, tmp_path, resume=True, progress=False)


@pytest.mark.parametrize("part", ["train", "held"])
def test_images_that_are_skipped_before_training_are_named(
    part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("train", "val"):
        write_images(tmp_path / folder, {"a": 3, "b": 3})
    torn = next((tmp_path / ("train" if part == "train" else "val") / "a").iterdir())
    torn.write_bytes(b"torn")
    data = DataSettings(
        name="folder", root=str(tmp_path), image_px=16, batch_images=2, corrupt="skip"
    )
    dataset = open_dataset(data)
    prepare_images(dataset, getattr(dataset, part), range(6), data)
    said = capsys.readouterr().err
    assert said.startswith("nnstretch: skipped, ")
    assert torn.name in said


def test_a_batch_that_processes_cannot_share_is_refused_before_the_folder_is_touched(
    tmp_path: Path,
) -> None:
    recipe = replace(
        SMALL,
        data=replace(SMALL.data, batch_images=33),
        trainer=replace(SMALL.trainer, devices=2),
    )
    with pytest.raises(BadInput, match=r"data\.batch_images is 33, 2 processes of 1 micro-batches"):
        fit(small_net(), recipe, tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()
