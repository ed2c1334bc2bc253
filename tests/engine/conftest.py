from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.engine.weights import Weights


@pytest.fixture(scope="session")
def smol(smollm2: Path) -> Iterator[Weights]:
    weights = Weights(smollm2)
    yield weights
    weights.close()


@pytest.fixture(scope="session")
def gemma(gemma3: Path) -> Iterator[Weights]:
    weights = Weights(gemma3)
    yield weights
    weights.close()
