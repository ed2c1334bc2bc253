"""What a person could type so that a job needs less, the mildest in quality first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvcache.budget import CELL_PADDING
from runner.config import JobConfig
from runner.kv_mode import KvModeConfig
from runner.planning.ladder import FACTOR
from runner.planning.model.profile import ModelProfile
from runner.planning.plan import Plan
from runner.planning.resolve import climbs

_SMALL_UBATCH = 64
_WIDE = ("f32", "f16", "bf16")
_POLICIES = {
    "peak": "what is looked at the least is forgotten",
    "keydiff": "what stands out the least is forgotten",
}
"""What evicts best, and what evicts where a quantised V or flash attention stays."""

GUIDED = "a guided reading"
_LEAST_GUIDED = 2 * CELL_PADDING


@dataclass(frozen=True)
class Remedy:
    """``overrides`` from the mildest to the strongest; one that has several is only as strong as it must be.

    Each is what a person types, which may be several words. One that is ``instead_of`` another is only spoken of
    where that does not help, or where it is needed; what it ``excludes`` is not taken beside it.
    """

    name: str
    cost: str
    overrides: tuple[str, ...]
    instead_of: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()


def remedies_of(config: JobConfig, plan: Plan) -> Iterator[Remedy]:
    """The remedies of a ``plan`` that does not fit, of which some may not help."""
    hardware = plan.request.hardware
    small = max(_SMALL_UBATCH, plan.n_seq_max)
    if plan.n_ubatch > small:
        yield Remedy("smaller micro-batch", "prefill may be slower", (f"n_ubatch={small}",))
    mode = config.kv_mode
    if not plan.flash_attn and mode.needs != "attention":
        yield Remedy("flash attention", "may be slower on this machine", ("flash_attn=on",))
    if plan.in_flight > 1:
        yield Remedy("one prompt at a time", "less throughput", ("in_flight=1",))
    if plan.kv_type_k in _WIDE and mode.codec == "none":
        yield Remedy("K in 8 bits", "a small loss of precision", ("kv_mode.k=q8_0",))
    if plan.kv_type_v in _WIDE and mode.codec == "none" and mode.needs != "attention":
        yield Remedy("V in 8 bits", "a small loss of precision; needs flash attention", ("kv_mode.v=q8_0",))
    if hardware.vram_budget and not hardware.unified and not config.spill.kv:
        yield Remedy("KV cache in host memory", "decoding is slower", ("spill.kv=true",))
    if plan.workers > 1:
        counts = range(plan.workers - 1, 0, -1)
        yield Remedy("fewer workers", "a vote of fewer answers", tuple(f"swarm_size={n}" for n in counts))
    if smaller := _smaller_windows(config, plan):
        yield Remedy("smaller window", "shorter answers or conversations", smaller)
    if hardware.vram_budget and config.spill.weights == "none":
        yield Remedy("weights in host memory", "decoding is much slower", ("spill.weights=auto",))
    if hardware.vram_budget and not hardware.unified:
        yield Remedy("no card", "everything on the processor, weights paged", ("hardware.vram=0",))
    budgets = _smaller_budgets(plan)
    if mode.evicts and budgets:
        smaller = tuple(f"kv_mode.budget={cells}" for cells in budgets)
        yield Remedy("smaller budget", "more of the prompt is forgotten", smaller)
    elif budgets and not plan.request.demand.conversation:
        if plan.request.demand.documents and (words := guided_overrides(config, budgets)):
            cost = "what the question does not look at is forgotten"
            yield Remedy(GUIDED, cost, words, excludes=("flash attention", "V in 8 bits"))
        names = ("an eviction mode", "an eviction mode with flash attention")
        for name, (policy, cost) in zip(names, _POLICIES.items(), strict=True):
            pairs = tuple(f"kv_mode.policy={policy} kv_mode.budget={cells}" for cells in budgets)
            yield Remedy(name, cost, pairs, instead_of=(GUIDED, names[0]))


def _smaller_budgets(plan: Plan) -> list[int]:
    """Cells that a policy could keep of the prompts, the most first."""
    most = min(plan.prefix_tokens, plan.budget_cells or plan.prefix_tokens)
    return budgets_below(most, plan.request.profile)


def budgets_below(most: int, profile: ModelProfile) -> list[int]:
    """Budgets below ``most`` cells that are worth trying for ``profile``, the largest first."""
    least = max(profile.sliding_window, CELL_PADDING)
    padded = range(most // CELL_PADDING * CELL_PADDING, least - 1, -CELL_PADDING)
    return [cells for cells in padded if cells < most]


def guided_overrides(config: JobConfig, budgets: Sequence[int]) -> tuple[str, ...]:
    """What a person types for ``kv_mode=guided`` at each of ``budgets``, and to keep what that would reset."""
    mode, plain = config.kv_mode, KvModeConfig()
    kept = [
        f"kv_mode.{key}={getattr(mode, key)}"
        for key in ("k", "chunk", "interval")
        if getattr(mode, key) != getattr(plain, key)
    ]
    # What a question looks at needs some room beside sinks and recent tokens.
    return tuple(
        " ".join(["kv_mode=guided", *kept, f"kv_mode.budget={cells}"])
        for cells in budgets
        if cells >= _LEAST_GUIDED
    )


def _smaller_windows(config: JobConfig, plan: Plan) -> tuple[str, ...]:
    need = plan.prefix_tokens + plan.suffix_tokens
    if climbs(config.window, conversation=plan.request.demand.conversation):
        floors = []
        floor = config.window.floor / FACTOR
        while floor >= max(need, 256):
            floors.append(f"window.floor={int(floor)}")
            floor /= FACTOR
        return tuple(floors)
    if config.window.policy == "fixed":
        shorter = range(plan.window_tokens - CELL_PADDING, need, -CELL_PADDING)
        return tuple(f"window.tokens={tokens}" for tokens in (*shorter, need) if tokens < plan.window_tokens)
    return tuple(f"sampling.max_tokens={tokens}" for tokens in range(plan.suffix_tokens - 1, 0, -1))
