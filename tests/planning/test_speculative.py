from __future__ import annotations

from collections.abc import Callable

import pytest

from runner.planning.hardware.budget import GIB
from runner.planning.speculative import DECODE, PLAIN, STACKED, Posture, fitting

VOCABULARY = 248_320


@pytest.mark.parametrize(("posture", "reference"), [(STACKED, 2.842), (DECODE, 0.947), (PLAIN, 1.895)])
def test_logits_of_the_reference_vocabulary(posture: Posture, reference: float) -> None:
    assert round(posture.logits_bytes(VOCABULARY) / GIB, 3) == reference


def extra(stacked: int, decode: int) -> Callable[[Posture], int]:
    return lambda posture: stacked if posture is STACKED else decode


def test_the_faster_posture_where_it_fits_and_none_where_neither_does() -> None:
    stacked, decode = (posture.logits_bytes(VOCABULARY) for posture in (STACKED, DECODE))
    assert fitting(VOCABULARY, stacked + 7, extra(7, 5)) is STACKED
    assert fitting(VOCABULARY, stacked + 6, extra(7, 5)) is DECODE
    assert fitting(VOCABULARY, decode + 5, extra(7, 5)) is DECODE
    assert fitting(VOCABULARY, decode + 4, extra(7, 5)) is None


def test_a_smaller_vocabulary_costs_less() -> None:
    assert STACKED.logits_bytes(VOCABULARY // 2) * 2 == STACKED.logits_bytes(VOCABULARY)
    assert fitting(32_000, GIB, extra(0, 0)) is STACKED
