"""The seed of the attack and its length; processes that share a run of tests share the seed."""

from __future__ import annotations

import os
import time

MINUTES = os.environ.get("NNSTRETCH_ATTACK_MINUTES")
SECONDS = float(MINUTES or "0.3") * 60
USUAL_SEED = 1
SEED = int(
    os.environ.setdefault(
        "NNSTRETCH_ATTACK_SEED", str(time.time_ns() % 10**9 if MINUTES else USUAL_SEED)
    )
)
