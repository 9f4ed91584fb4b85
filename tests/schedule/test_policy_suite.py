"""The shipped policy passes the suite that authors of policies inherit."""

from __future__ import annotations

import pytest

from nnstretch.schedule import StaticPlacement
from nnstretch.testing.policy_suite import MakePolicy, PolicySuite


@pytest.mark.parametrize("asynchronous_first", [True, False])
class TestStaticPlacement(PolicySuite):
    @pytest.fixture
    def make_policy(self, asynchronous_first: bool) -> MakePolicy:
        return lambda processors, times_us: StaticPlacement(
            tuple(processor.name for processor in processors), asynchronous_first
        )
