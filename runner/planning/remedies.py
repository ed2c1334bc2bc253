"""A plan is taken, or refused with what would make it fit: cheapest in quality first, each one tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from runner.config import KvModeConfig
from runner.errors import KvswarmError, PlanRefusedError
from runner.planning.plan import Plan, Request, resolve

_SMALL_UBATCH = 64
_Q8 = KvModeConfig(name="q8_0", k="q8_0", v="q8_0")


def accept(plan: Plan) -> Plan:
    """``plan``, where it fits.

    Raises:
        PlanRefusedError: it does not; with needed, available and missing bytes and what would help.
    """
    if plan.status != "refused":
        return plan
    found = remedies(plan)
    if found:
        advice = "any of these makes it fit: " + ", ".join(found)
    else:
        advice = (
            "no single change makes it fit; choose a smaller model, or give it more memory (hardware.ram)"
        )
    raise PlanRefusedError(f"{plan.reason}; {advice}")


def remedies(plan: Plan) -> list[str]:
    """Overrides to type, each of which alone makes ``plan`` fit; empty where none does.

    After a dry run the candidates are charged what the engine asked for beyond the formula.
    """
    request = plan.request
    if request is None:
        return []
    surplus = max(plan.total_bytes - _resolved(request).total_bytes, 0)

    def fits(candidate: Request) -> bool:
        try:
            tried = _resolved(candidate)
        except KvswarmError:
            return False
        return tried.total_bytes + (surplus if not tried.n_gpu_layers else 0) <= tried.available_bytes

    return [override for override, candidate in _candidates(request, fits) if fits(candidate)]


def _resolved(request: Request) -> Plan:
    return resolve(
        request.profile,
        request.hardware,
        model_name=request.model_name,
        kv_mode=request.kv_mode,
        window=request.window,
        demand=request.demand,
        flash_attn=request.flash_attn,
        n_ubatch=request.n_ubatch,
        n_threads=request.n_threads,
    )


def _candidates(request: Request, fits: Callable[[Request], bool]) -> Iterator[tuple[str, Request]]:
    demand = request.demand
    if request.n_ubatch > _SMALL_UBATCH:
        yield f"n_ubatch={_SMALL_UBATCH}", replace(request, n_ubatch=_SMALL_UBATCH)
    if not request.flash_attn:
        yield "flash_attn=on", replace(request, flash_attn=True)
    elif request.kv_mode.k in ("f32", "f16", "bf16"):
        mode = replace(_Q8, swa_full=request.kv_mode.swa_full)
        yield "kv_mode=q8_0", replace(request, kv_mode=mode)
    if demand.in_flight > 1:
        n_seq_max = max(demand.n_seq_max - (demand.in_flight - 1) * demand.workers, 1)
        yield "in_flight=1", replace(request, demand=replace(demand, in_flight=1, n_seq_max=n_seq_max))

    def with_workers(workers: int) -> Request:
        n_seq_max = max(demand.n_seq_max - demand.in_flight * (demand.workers - workers), 1)
        return replace(request, demand=replace(demand, workers=workers, n_seq_max=n_seq_max))

    def with_answer(tokens: int) -> Request:
        return replace(request, demand=replace(demand, suffix_tokens=tokens))

    workers = _largest(demand.workers - 1, lambda n: fits(with_workers(n)))
    if workers:
        yield f"swarm_size={workers}", with_workers(workers)
    tokens = _largest(demand.suffix_tokens - 1, lambda n: fits(with_answer(n)))
    if tokens:
        yield f"sampling.max_tokens={tokens}", with_answer(tokens)


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest number from 1 to ``most`` that fits, by bisection; 0 where not even 1 does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
