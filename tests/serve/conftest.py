"""Fixtures of several files of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.serving import HttpService, http_service

from nnstretch.serve.request_body import HttpLimits

LIMITS = HttpLimits(body_bytes=200_000, body_s=0.3, skip_s=0.1)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpService]:
    with http_service(tmp_path_factory.mktemp("serve"), limits=LIMITS, headers_s=0.3) as service:
        yield service
