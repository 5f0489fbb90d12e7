"""One dataflow with the small models for all tests that need them; another with fakes, for those that don't."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gateway.serving import FAKES, Served, serving


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("real"), LLM_DTYPE="fp32") as served:
        yield served


@pytest.fixture(scope="session")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    limits = {"IMAGE_MEGAPIXELS": "1", "AUDIO_S": "35", "MESSAGE_MB": "8", "REQUESTS_PER_MINUTE": "6000"}
    with serving(tmp_path_factory.mktemp("fake"), **FAKES, **limits, FAKE_TEXTS="what is this") as served:
        yield served
