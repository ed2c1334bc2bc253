from __future__ import annotations

import pytest
from planned import AUTO, DENSE, HYBRID, MIB, MIXTURE, Q8, SMALL, ask, card, host, model, plan, unified

from runner.errors import PlanRefusedError
from runner.planning.hardware.budget import GIB, Hardware
from runner.planning.inverse import largest
from runner.planning.model.profile import Block, Layer, ModelProfile
from runner.planning.plan import Plan
from runner.planning.resolve import at_window

SLIDING = ModelProfile(
    "gemma3", (*((Layer("sliding", 4, 128, 128),) * 5), Layer("full", 4, 128, 128)) * 2, n_layer=12, n_embd=1024,
    n_head=8, n_ff=2048, n_vocab=30_000, n_ctx_train=32_768, weights_bytes=400 * MIB, sliding_window=512,
)  # fmt: skip
UNEVEN = model([Block(n * MIB, 3 * n * MIB, 40 * MIB * (n % 3), recurrent=n % 2 == 0) for n in range(1, 13)])


def swarm(profile: ModelProfile, hardware: Hardware, workers: int) -> Plan:
    return plan(profile, hardware, workers=workers, prefix=500, suffix=2000, spill=AUTO)


def machine(vram: int, ram: int, cards: int = 1, pool: bool = False) -> Hardware:
    if pool:
        return unified(ram)
    return card(vram, ram, cards) if vram else host(ram)


def pageable(profile: ModelProfile, vram: int, pool: bool) -> int:
    """Bytes of weights that need no memory of their own."""
    return (
        sum(block.total_bytes for block in profile.blocks) if pool else 0 if vram else profile.weights_bytes
    )


CASES: list[tuple[ModelProfile, int, int, bool]] = [
    (SMALL, 0, 1, False),
    (SLIDING, 0, 1, False),
    (MIXTURE, 0, 1, True),
    (DENSE, 4 * GIB, 1, False),
    (DENSE, 4 * GIB, 2, False),
    (MIXTURE, 5 * GIB, 1, False),
    (MIXTURE, 5 * GIB, 3, False),
    (HYBRID, 4 * GIB, 1, False),
    (UNEVEN, 900 * MIB, 1, False),
]
"""Model, VRAM, cards, unified memory."""


@pytest.mark.parametrize(("profile", "vram", "cards", "pool"), CASES)
def test_the_most_workers_by_brute_force(profile: ModelProfile, vram: int, cards: int, pool: bool) -> None:
    ram = swarm(profile, machine(vram, 1000 * GIB, cards, pool), 20).ram_bytes
    hardware = machine(vram, ram - pageable(profile, vram, pool), cards, pool)
    found = largest(60, lambda workers: swarm(profile, hardware, workers))
    fits = [n for n in range(1, 61) if swarm(profile, hardware, n).status != "refused"]
    assert 1 < found.value < 60, "the case is to be about the limit"
    assert fits == list(range(1, found.value + 1))
    assert found.plan == swarm(profile, hardware, found.value)


@pytest.mark.parametrize(("profile", "vram", "cards", "pool"), CASES)
@pytest.mark.parametrize("workers", [1, 7])
def test_the_longest_window_by_brute_force(
    profile: ModelProfile, vram: int, cards: int, pool: bool, workers: int
) -> None:
    def at(tokens: int, ram: int) -> Plan:
        hardware = machine(vram, ram, cards, pool)
        request = ask(profile, hardware, suffix=64, workers=workers, kv_mode=Q8, spill=AUTO)
        return at_window(request, tokens)

    native, wanted = profile.n_ctx_train, profile.n_ctx_train // 3
    ram = at(wanted, 1000 * GIB).ram_bytes - pageable(profile, vram, pool)
    found = largest(native, lambda tokens: at(tokens, ram), least=65)
    assert 65 < found.value < native, "the case is to be about the limit"
    assert found.plan.window_tokens == found.value and found.plan.status != "refused"
    assert all(at(tokens, ram).status != "refused" for tokens in range(65, found.value, native // 100))
    beyond = (*range(found.value + 1, found.value + 300), *range(found.value + 300, native, native // 50))
    assert all(at(tokens, ram).status == "refused" for tokens in beyond)


def test_the_upper_end_itself_may_be_the_answer() -> None:
    assert largest(9, lambda workers: plan(workers=workers)).value == 9
    assert largest(1, lambda workers: plan(workers=workers)).value == 1


def test_not_even_the_smallest() -> None:
    found = largest(9, lambda workers: plan(SMALL, host(MIB), workers=workers))
    assert found.value == 0 and found.plan.status == "refused" and found.plan.missing_bytes > 0


def test_what_raises_is_beyond_the_limit() -> None:
    def at(tokens: int) -> Plan:
        return plan(prefix=tokens)

    found = largest(100_000, at)
    assert found.value == 8192 - 64
    with pytest.raises(PlanRefusedError):
        at(found.value + 1)
    with pytest.raises(PlanRefusedError):
        largest(100_000, at, least=9000)
