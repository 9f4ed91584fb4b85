"""A bundle with branches, for files that need no other."""

from __future__ import annotations

import pytest
from support.bundles import branched_bundle

from nnstretch.bundle.bundle import Bundle


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return branched_bundle()
