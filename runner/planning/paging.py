"""What it costs to run weights that do not fit in memory: the system reads them from their file over and over."""

from __future__ import annotations

from runner.planning.hardware.budget import gib
from runner.planning.model.profile import ModelProfile
from runner.planning.spill import blocks_of

DISK_BYTES_S = 2 * 10**9
"""A consumer NVMe disk's random-ish read rate; the warning names it, so that a person can scale it."""


def read_per_token(profile: ModelProfile, mapped_bytes: int, cache_bytes: int) -> int:
    """Bytes that one decoded token has to read from disk, of ``mapped_bytes`` with ``cache_bytes`` of page cache.

    A dense model touches all of its weights in the same order for every token, and what was read first is
    what the system forgets first: once it does not fit, little of it is ever found again. A mixture touches the
    experts that its router chooses; the rest of a block is touched always and stays.
    """
    if mapped_bytes <= cache_bytes:
        return 0
    experts = sum(block.expert_bytes for block in blocks_of(profile)) * mapped_bytes // profile.weights_bytes
    if not experts or not profile.n_expert:
        return mapped_bytes
    always = max(mapped_bytes - experts, 0)
    touched = experts * profile.n_expert_used // profile.n_expert
    found = max(cache_bytes - always, 0) / experts
    return int(max(always - cache_bytes, 0) + touched * (1 - min(found, 1)))


def warning(profile: ModelProfile, mapped_bytes: int, cache_bytes: int) -> str:
    """One line about ``mapped_bytes`` of weights beside ``cache_bytes`` of memory to keep them in."""
    read = read_per_token(profile, mapped_bytes, cache_bytes)
    return (
        f"the weights ({gib(mapped_bytes)}) are larger than the {gib(max(cache_bytes, 0))} left for them and are "
        f"paged from their file: about {gib(read)} read for each token, {read / DISK_BYTES_S:.2g} s at "
        f"{DISK_BYTES_S / 10**9:g} GB/s; workers that decode together share the reads"
    )
