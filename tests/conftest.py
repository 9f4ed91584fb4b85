"""Property tests are not timed: a busy machine is no finding. Scripts can be imported by name."""

from __future__ import annotations

import support.scripts  # noqa: F401
from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
