from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner.models import fetch, known


def pytest_configure() -> None:
    """Give each of pytest-xdist's workers a core of its own: llama.cpp's threads spin while they wait."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if worker and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})


def _weights(name: str) -> Path:
    return fetch(next(model for model in known() if model.name == name))


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct: the llama architecture, full attention in every layer."""
    return _weights("smollm2")


@pytest.fixture(scope="session")
def gemma3() -> Path:
    """Gemma 3 270M: a window of 512 in 15 of its 18 layers."""
    return _weights("gemma3_270m")
