"""Sound commands of every verb, and hostile ones made of them."""

from __future__ import annotations

from attack.hostile import words
from attack.samples import FILES
from hypothesis import strategies as st

from nnstretch.cli import parser_of

QUICK = ("--trainer.max_epochs", "1", "--data.image_px", "16", "--trainer.threads", "1")
LEASE = ("--lease-s", "2")
"""Trials that a damaged journal leaves open are waited for so long: it is no hang."""
SOUND: dict[str, tuple[tuple[str, ...], ...]] = {
    "inspect": (
        ("net.py:make", "--input", "1,3,16,16"),
        ("net.onnx",),
        ("net.pt2",),
        ("plan.yaml",),
    ),
    "import": (("config.yaml", "--out", "new.yaml"),),
    "predict": (
        ("net.py:make", "--soc", "chip", "--input", "1,3,16,16"),
        ("plan.yaml", "--soc", "chip"),
        ("net.onnx", "--soc", "mi9", "--processors", "cpu"),
        ("--ops", "ops.csv", "--soc", "chip"),
    ),
    "search": (
        ("net.py:make", "--soc", "chip", "--input", "1,3,16,16", "--out", "new.yaml"),
        ("net.pt2", "--soc", "chip", "--processors", "cpu,dsp", "--top", "2"),
    ),
    "study": (
        (
            *("net.py:make", "--soc", "chip", "--trials", "1", "--warm", "0", "--out", "study"),
            *("--sampler", "random", "--input", "1,3,16,16", "--storage", "new.log"),
            *LEASE,
        ),
        (
            *("net.py:make", "--soc", "chip", "--trials", "2", "--input", "1,3,16,16"),
            *("--storage", "study.log", "--out", "study", "--sampler", "random", *LEASE),
        ),
    ),
    "study capacity": (
        ("net.py:make", "--recipe", "recipe.yaml", "--depths", "1", "--widths", "0.5", *QUICK),
    ),
    "train": (
        ("recipe.yaml", "--out", "trained"),
        ("recipe.yaml", "--print_config"),
        ("recipe.yaml", "--plan", "plan.yaml", "--weights", "net.safetensors", "--out", "trained"),
        ("recipe.yaml", "--out", "begun", "--resume", "--trainer.max_epochs", "2"),
        (
            *("recipe.yaml", "--teacher", "net.safetensors", "--out", "trained"),
            *("--loss.distill", "0.5"),
        ),
        ("folder.yaml", "--out", "trained"),
        ("shards.yaml", "--out", "trained"),
    ),
    "quantize": (
        (
            *("recipe.yaml", "--weights", "net.safetensors"),
            *("--out", "new.tflite"),
        ),
    ),
    "export": (
        ("net.py:make", "--weights", "net.safetensors", "--input", "1,3,16,16", "--out", "new.nns"),
        ("plan.yaml", "--soc", "chip", "--out", "new.nns"),
    ),
    "partition": (
        ("net.py:make", "--soc", "chip", "--stages", "2", "--input", "1,3,16,16"),
        ("net.onnx", "--soc", "chip", "--out", "new.nns"),
    ),
    "run": (
        ("net.nns", "--repeat", "1", "--input", "input.npy", "--output", "new.npy"),
        ("net.nns", "--clock", "virtual", "--requests", "2", "--trace", "new.json"),
        ("pipeline.nns", "--mode", "pipeline", "--repeat", "2"),
        ("litert.nns", "--repeat", "1"),
        ("net.nns", "--repeat", "1", "--input", "picture.png"),
    ),
    "bench": (("plan.yaml", "--runs", "1"),),
    "schedule": (("tasks.json",), ("tasks.stg", "--processors", "2"), ("--policies",)),
    "accelerate": (
        ("net.py:make", "--accelerator", "chip.yaml", "--input", "1,3,16,16", "--out", "planned"),
        ("net.onnx", "--accelerator", "chip.yaml", "--policy", "best", "--budget-s", "1"),
        (
            *("net.py:make", "--accelerator", "chip.yaml", "--input", "1,3,16,16"),
            *("--schedule", "planned/schedule.yaml"),
        ),
    ),
    "simulate": (
        ("workload.yaml", "--trace", "new.json"),
        ("workload.yaml", "--log", "logs"),
        ("listed.yaml", "--check"),
        ("recorded.yaml", "--replay", "record.jsonl"),
        ("served.yaml", "--costs", "costs.json"),
    ),
    "simulate measure": (
        ("served.yaml", "--rounds", "2", "--out", "new.json"),
        ("recorded.yaml", "--record", "record.jsonl", "--out", "new.json"),
    ),
    "simulate sweep": (
        ("sweep.yaml", "--workers", "1", "--out", "new"),
        ("sweep.yaml", "--workers", "1", "--out", "swept"),
    ),
    "doctor": (("--seconds", "0"),),
    "report": (
        ("story", "--out", "new.html"),
        ("story/trace_original.json", "--out", "new.html"),
        ("swept", "--out", "new.html"),
        ("planned/chip.json", "--out", "new.html"),
    ),
    "profile": (
        ("--out", "profiled", "--backend", "nowhere", "--budget-s", "1"),
        (
            *("--out", "profiled", "--backend", "nowhere", "--for", "net.py:make@1,3,16,16"),
            *("--for", "net.onnx", "--for", "plan.yaml"),
        ),
        ("--check", "measured"),
    ),
    "serve": (
        ("served.yaml", "--socket", "net.sock", "--record", "new.jsonl", "--log", "logs"),
        ("net.nns", "--port", "0", "--max-body-mb", "1"),
        ("litert.nns", "pipeline.nns", "--socket", "net.sock"),
    ),
}
"""Words of commands that end within seconds: `profile` is refused early, `serve` is interrupted."""
REFUSED = ("profile",)
SELDOM = ("import", "bench", "study capacity", "quantize")
"""Verbs that take seconds."""


def command(data: st.DataObject) -> list[str]:
    """Draw a verb and its words, of which some may be hostile."""
    verbs = sorted([*SOUND, *(set(SOUND) - set(SELDOM)), *(set(SOUND) - set(SELDOM))])
    verb = data.draw(st.sampled_from(verbs))
    argv = list(data.draw(st.sampled_from(SOUND[verb])))
    if data.draw(st.booleans()):
        argv.append("--json")
    for _ in range(data.draw(st.integers(0, 2))):
        change_words(data, verb, argv)
    if verb in REFUSED and not {"--check", "nowhere"} & set(argv):
        argv += ["--backend", "nowhere"]  # else it measures for the seven minutes of its budget
    return [*verb.split(), *argv]


def change_words(data: st.DataObject, verb: str, argv: list[str]) -> None:
    """Replace, remove or repeat a word, or give one of the verb's other options a hostile value."""
    how = data.draw(st.sampled_from(("replace", "remove", "repeat", "option", "option")))
    if how == "option" or not argv:
        options = [action for action in parser_of(verb)._actions if action.option_strings]
        option = data.draw(st.sampled_from(options))
        argv.append(option.option_strings[-1])
        if option.nargs != 0:
            argv.append(data.draw(words() | st.sampled_from(FILES)))
        return
    at = data.draw(st.integers(0, len(argv) - 1))
    if how == "remove":
        del argv[at]
    elif how == "repeat":
        argv.insert(at, argv[at])
    else:
        argv[at] = data.draw(words() | st.sampled_from(FILES))
