"""What a stranger may have written is parsed in one place for each language (files/)."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2] / "nnstretch"
PARSE = re.compile(
    r"\b(json\.loads?|yaml\.\w*load\w*|tomllib\.loads?|pickle\.loads?|ast\.literal_eval)\("
)
PARSERS = {
    "files/json_text.py": "the one parser of JSON",
    "files/strict_yaml.py": "the one parser of YAML",
    "profile/backends/onnxruntime_meter.py": "what the runtime has just written for us",
    "profile/contention_worker.py": "what our own process writes to it",
    "bench/commands.py": "what our own process has answered",
    "study/config.py": "a copy of what is here already",
    "train/data/shard_index.py": "compared with the only text that is taken",
    "train/checkpoints.py": "infinities of Lightning's own state",
    "testing/dataset_suite.py": "a copy of what is here already",
    "capture/onnx/names.py": "class names as exporters write them",
    "capture/checks/pt2_checks.py": "seen as torch.export itself will see it",
}
"""Modules that parse text, and why each may."""


def test_other_parsers_than_ours_read_only_what_we_wrote_ourselves() -> None:
    found = {
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        if PARSE.search(path.read_text(encoding="utf-8"))
    }
    assert found == set(PARSERS)
