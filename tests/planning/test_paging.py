from __future__ import annotations

import pytest
from planned import DENSE, MIB, MIXTURE

from runner.planning.hardware.budget import GIB, gib
from runner.planning.paging import DISK_BYTES_S, read_per_token, warning

EXPERTS = 16 * 400 * MIB


def test_what_fits_is_read_once() -> None:
    assert read_per_token(DENSE, 5 * GIB, 5 * GIB) == 0
    assert read_per_token(MIXTURE, 5 * GIB, 6 * GIB) == 0


def test_a_dense_model_reads_all_of_it_for_every_token() -> None:
    """What was read first is forgotten first, so most of a cache that is too small is of no use."""
    assert read_per_token(DENSE, DENSE.weights_bytes, DENSE.weights_bytes - 1) == DENSE.weights_bytes
    assert read_per_token(DENSE, DENSE.weights_bytes, 0) == DENSE.weights_bytes


def test_a_mixture_reads_the_experts_that_are_not_found() -> None:
    """8 of 64 experts a token; what every token passes is kept, the rest of the cache holds experts."""
    whole = MIXTURE.weights_bytes
    always = whole - EXPERTS
    touched = EXPERTS // 8
    assert read_per_token(MIXTURE, whole, always) == touched
    assert read_per_token(MIXTURE, whole, always + EXPERTS // 2) == touched // 2
    assert read_per_token(MIXTURE, whole, 0) == always + touched


@pytest.mark.parametrize("profile", [DENSE, MIXTURE])
def test_more_cache_never_reads_more(profile: object) -> None:
    reads = [read_per_token(profile, 7 * GIB, cache) for cache in range(0, 8 * GIB, 200 * MIB)]  # type: ignore[arg-type]
    assert reads == sorted(reads, reverse=True) and reads[-1] == 0


def test_the_warning_says_what_is_read_and_how_long_that_takes() -> None:
    read = read_per_token(MIXTURE, MIXTURE.weights_bytes, 4 * GIB)
    line = warning(MIXTURE, MIXTURE.weights_bytes, 4 * GIB)
    assert f"the weights ({gib(MIXTURE.weights_bytes)}) are larger than the 4.00 GiB left for them" in line
    assert f"about {gib(read)} read for each token, {read / DISK_BYTES_S:.2g} s at 2 GB/s" in line
    assert "\n" not in line
