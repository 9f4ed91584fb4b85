"""A small network and its plan as files, as the command line reads them."""

from __future__ import annotations

from pathlib import Path


def write_plan_of_small_net(folder: Path) -> Path:
    """Write a network and a plan with one branched segment into a folder; return the plan."""
    (folder / "net.py").write_text(
        "from torch import nn\n\n\ndef make():\n    return nn.Sequential(nn.Sequential(nn.Conv2d(3,"
        " 16, 3, 2, 1), nn.ReLU()), nn.Flatten(), nn.Linear(16 * 64, 10))\n"
    )
    plan = folder / "plan.yaml"
    plan.write_text(
        f"format: 1\nmodel: {folder}/net.py:make\ninput: [1, 3, 16, 16]\nsegments:\n  - end: '0'\n "
        "   branches: [{processor: cpu, width: 8}, {processor: dsp, width: 8}]\n  - {end:"
        " output, processor: cpu}\n"
    )
    return plan
