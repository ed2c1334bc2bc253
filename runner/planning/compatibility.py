"""Which options cannot work together, why, and what to type instead: one table, and the check against it.

:mod:`runner.planning.compatibility_page` makes ``docs/compatibility.md`` of :data:`RULES`. What merely does not
fit, memory or window, is no matter of this table: a plan refuses that with the bytes or tokens missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvcache.policies import POLICIES
from runner.config import JobConfig
from runner.errors import ConfigError
from runner.planning.facts import Facts
from runner.planning.sequences import MAX_SEQUENCES


@dataclass(frozen=True)
class Rule:
    """Options that exclude each other.

    Attributes:
        name: what the page calls it.
        sides: each option's key, and in words for which of its values the rule holds.
        applies: whether a job breaks it.
        reason: why, in one clause.
        overrides: what to type instead, any one of them; ``{sequences}`` and the like are the job's own numbers.
        otherwise: what else helps that is no single override.
    """

    name: str
    sides: tuple[tuple[str, str], ...]
    applies: Callable[[Facts], bool]
    reason: str
    overrides: tuple[str, ...] = ()
    otherwise: str = ""

    def typed(self, facts: Facts) -> tuple[str, ...]:
        """The overrides with the job's numbers in them."""
        return tuple(override.format_map(_numbers(facts)) for override in self.overrides)

    def line(self, facts: Facts) -> str:
        """One line for a person: the options as they are set, the reason and the remedy."""
        first, *more = (_said(key, facts.config) for key, _ in self.sides)
        remedies = [f"set {' or '.join(self.typed(facts))}"] if self.overrides else []
        remedies += [self.otherwise] if self.otherwise else []
        reason = self.reason.format_map(_numbers(facts))
        return f"{first} with {' and '.join(more)}: {reason}; {', or '.join(remedies)}"


def check(facts: Facts) -> None:
    """Refuse options that exclude each other.

    Raises:
        ConfigError: the first rule that the job breaks, in one line with the reason and the remedy.
    """
    for rule in RULES:
        if rule.applies(facts):
            raise ConfigError(rule.line(facts))


def _numbers(facts: Facts) -> dict[str, int]:
    per_prompt = facts.sequences // facts.in_flight or 1
    return {
        "sequences": facts.sequences,
        "most_in_flight": MAX_SEQUENCES // per_prompt,
        "head_k": facts.odd_k_head,
        "head_v": facts.odd_v_head,
        "kept": facts.config.kv_mode.sinks + facts.recent_cells,
        "least_budget": facts.config.kv_mode.sinks + 1,
        "least_sliding": facts.least_sliding_budget,
    }


_ATTENDING = ", ".join(f"`{name}`" for name, policy in POLICIES.items() if policy.needs == "attention")
_LOOK_AWAY = "choose a policy that looks at none, as kv_mode=keydiff or kv_mode=window"


_SAID: dict[str, Callable[[JobConfig], str]] = {
    "model": lambda config: f"model={config.model.label}",
    "hardware": lambda config: f"hardware={config.hardware.name}",
    "swarm_size": lambda config: f"swarm_size={config.swarm_size.workers}",
    "messages": lambda config: "chat prompts",
    "turns": lambda config: "prompts with turns",
}
"""What is called otherwise than by its key and value."""


def _said(key: str, config: JobConfig) -> str:
    if key in _SAID:
        return _SAID[key](config)
    value: object = config
    for part in key.split("."):
        value = getattr(value, part)
    return f"{key}={'null' if value is None else str(value).lower() if isinstance(value, bool) else value}"


# The order is that of telling: of several broken rules the first one is named.
RULES: tuple[Rule, ...] = (
    Rule(
        "fixed-window-without-length",
        (("window.policy", "`window.policy=fixed`"), ("window.tokens", "no `window.tokens`")),
        lambda f: f.config.window.policy == "fixed" and f.config.window.tokens is None,
        "a fixed window needs its length",
        ("window.policy=need",),
        "give window.tokens",
    ),
    Rule(
        "length-without-fixed-window",
        (("window.tokens", "`window.tokens`"), ("window.policy", "a policy that is not `fixed`")),
        lambda f: f.config.window.policy != "fixed" and f.config.window.tokens is not None,
        "only a fixed window has a length, under any other policy it would be ignored",
        ("window.policy=fixed", "window.tokens=null"),
    ),
    Rule(
        "quant-of-own-file",
        (("model.quant", "`model.quant`"), ("model.path", "`model.path`")),
        lambda f: f.config.model.quant is not None and f.config.model.path is not None,
        "a quant is one of an option's files, the path is a file of its own",
        ("model.quant=null", "model.path=null"),
    ),
    Rule(
        "quant-without-quants",
        (("model.quant", "`model.quant`"), ("model", "a model without `quants`")),
        lambda f: f.config.model.quant is not None and not f.config.model.quants,
        "the model comes in one file",
        ("model.quant=null",),
    ),
    Rule(
        "auto-quant-without-profile",
        (("model.quant", "`model.quant=auto`"), ("model", "a model without `profile`")),
        lambda f: f.config.model.quant == "auto" and f.config.model.profile is None,
        "the choice is made by planning, and nothing declares what to plan with",
        otherwise="name one of its quants, or give model.profile",
    ),
    Rule(
        "unified-with-vram",
        (("hardware.unified", "`hardware.unified=true`"), ("hardware.vram", "`hardware.vram` above 0")),
        lambda f: bool(f.config.hardware.unified and f.config.hardware.vram),
        "unified memory is one pool; its size is hardware.ram alone",
        ("hardware.vram=null", "hardware.unified=null"),
    ),
    Rule(
        "cards-without-vram",
        (("hardware.cards", "`hardware.cards` above 1"), ("hardware.vram", "no `hardware.vram`")),
        lambda f: f.config.hardware.cards > 1 and f.config.hardware.vram is None,
        "cards divide a VRAM that is declared, cards that are looked up count themselves",
        ("hardware.cards=1",),
        "give the memory of all cards as hardware.vram",
    ),
    Rule(
        "base-model-with-system",
        (("model", "a base model (`model.chat=false`)"), ("prompts.system", "`prompts.system`")),
        lambda f: f.config.model.chat is False and bool(f.config.prompts.system),
        "a base model has no chat template to put a system text in",
        ("prompts.system=null",),
        "choose a chat model",
    ),
    Rule(
        "base-model-with-chat",
        (
            ("model", "a base model (`model.chat=false`)"),
            ("messages", "prompts with `messages`, `turns` or a `system` text"),
        ),
        lambda f: f.config.model.chat is False and (f.chats or f.turns),
        "a base model has no chat template and takes plain text",
        otherwise="give one `prompt` without a system text, or choose a chat model",
    ),
    Rule(
        "turns-in-flight",
        (("in_flight", "`in_flight` above 1"), ("turns", "prompts with `turns`")),
        lambda f: f.config.in_flight > 1 and f.turns,
        "a conversation has the context to itself, which is exchanged when its window grows",
        ("in_flight=1",),
    ),
    Rule(
        "quantised-v-without-flash",
        (("kv_mode.v", "a quantised `kv_mode.v`"), ("flash_attn", "`flash_attn=off`")),
        lambda f: f.config.flash_attn == "off" and f.quantised_v,
        "a quantised V needs flash attention",
        ("flash_attn=on", "kv_mode.v=f16"),
    ),
    Rule(
        "quantised-v-where-flash-is-not",
        (("kv_mode.v", "a quantised `kv_mode.v`"), ("model", "Grok")),
        lambda f: f.without_flash and f.quantised_v,
        "a quantised V needs flash attention, which llama.cpp does not do for this architecture",
        ("kv_mode.v=f16",),
    ),
    Rule(
        "flash-where-it-is-not",
        (("flash_attn", "`flash_attn=on`"), ("model", "Grok")),
        lambda f: f.without_flash and f.config.flash_attn == "on",
        "llama.cpp does not do flash attention for this architecture",
        ("flash_attn=auto",),
    ),
    Rule(
        "two-types-in-one-row",
        (
            ("kv_mode.k", "`kv_mode.k`"),
            ("kv_mode.v", "another type as `kv_mode.v`"),
            ("model", "a model with multi-head latent attention (MLA)"),
        ),
        lambda f: f.config.kv_mode.k != f.config.kv_mode.v and f.one_row,
        "the model keeps one compressed row for K and V, of one type",
        otherwise="set kv_mode.k and kv_mode.v alike",
    ),
    Rule(
        "k-blocks-in-heads",
        (("kv_mode.k", "a quantised `kv_mode.k`"), ("model", "heads that are no multiple of 32")),
        lambda f: f.odd_k_head > 0,
        "the type stores blocks of 32 elements, the model has heads of {head_k}",
        ("kv_mode.k=f16",),
    ),
    Rule(
        "v-blocks-in-heads",
        (("kv_mode.v", "a quantised `kv_mode.v`"), ("model", "heads that are no multiple of 32")),
        lambda f: f.odd_v_head > 0,
        "the type stores blocks of 32 elements, the model has heads of {head_v}",
        ("kv_mode.v=f16",),
    ),
    Rule(
        "codec-in-other-cells",
        (
            ("kv_mode.codec", "`kv_mode.codec=fp8`"),
            ("kv_mode.k", "`kv_mode.k`"),
            ("kv_mode.v", "`kv_mode.v`, not both `f16`"),
        ),
        lambda f: f.config.kv_mode.codec == "fp8" and {f.config.kv_mode.k, f.config.kv_mode.v} != {"f16"},
        "the engine has no FP8 cells, FP8 is rounded to inside f16 ones",
        ("kv_mode.codec=none",),
        "set kv_mode.k and kv_mode.v to f16",
    ),
    Rule(
        "attention-with-flash",
        (
            ("kv_mode.policy", f"a `kv_mode.policy` that looks at attention ({_ATTENDING})"),
            ("flash_attn", "`flash_attn=on`"),
        ),
        lambda f: f.config.flash_attn == "on" and f.config.kv_mode.needs == "attention",
        "the policy looks at attention, which flash attention never writes down",
        ("flash_attn=auto",),
        _LOOK_AWAY,
    ),
    Rule(
        "attention-with-quantised-v",
        (
            ("kv_mode.policy", f"a `kv_mode.policy` that looks at attention ({_ATTENDING})"),
            ("kv_mode.v", "a quantised `kv_mode.v`"),
        ),
        lambda f: f.quantised_v and f.config.kv_mode.needs == "attention",
        "a quantised V needs flash attention, which never writes down the attention that the policy looks at",
        ("kv_mode.v=f16",),
        _LOOK_AWAY,
    ),
    Rule(
        "budget-of-sinks-alone",
        (("kv_mode.budget", "`kv_mode.budget`"), ("kv_mode.sinks", "as many `kv_mode.sinks`")),
        lambda f: 0 < f.budget_cells <= f.config.kv_mode.sinks,
        "a budget is at least the sinks, the recent tokens and one cell to choose for",
        ("kv_mode.budget={least_budget}",),
        "lower kv_mode.sinks",
    ),
    Rule(
        "nothing-to-choose",
        (
            ("kv_mode.budget", "`kv_mode.budget`"),
            ("kv_mode.recent", "a `kv_mode.recent` that takes all of it but the sinks"),
        ),
        lambda f: 0 < f.budget_cells <= f.config.kv_mode.sinks + f.recent_cells,
        "a budget is at least the sinks, the recent tokens (here {kept} together) and one cell to choose for",
        ("kv_mode.recent=0.25",),
    ),
    Rule(
        "budget-below-sliding-window",
        (("kv_mode.budget", "`kv_mode.budget`"), ("model", "sliding-window layers with a longer window")),
        lambda f: 0 < f.budget_cells < f.least_sliding_budget,
        "what leaves the cache leaves its sliding-window layers too, and those need their whole window",
        ("kv_mode.budget={least_sliding}",),
    ),
    Rule(
        "shared-choice-in-sliding-window",
        (
            ("kv_mode.granularity", "`kv_mode.granularity=token`"),
            ("model", "sliding-window layers with a window that passes the recent tokens"),
        ),
        lambda f: (
            f.config.kv_mode.granularity == "token"
            and f.config.kv_mode.needs != "nothing"
            and f.budget_cells > 0
            and f.recent_cells < f.sliding_window
        ),
        "where all layers share their tokens, the sliding-window layers' window must be among the recent ones",
        ("kv_mode.granularity=head",),
        "raise kv_mode.budget or kv_mode.recent",
    ),
    Rule(
        "layer-weights-alone",
        (
            ("kv_mode.layer_weights", "`kv_mode.layer_weights`"),
            ("kv_mode.granularity", "a granularity that is not `token`"),
        ),
        lambda f: bool(f.config.kv_mode.layer_weights) and f.config.kv_mode.granularity != "token",
        "layers have weights where they choose together, else they would be ignored",
        ("kv_mode.granularity=token", "kv_mode.layer_weights=[]"),
    ),
    Rule(
        "eviction-in-flight",
        (("kv_mode.policy", "`kv_mode.policy`"), ("in_flight", "`in_flight` above 1")),
        lambda f: f.config.kv_mode.evicts and f.config.in_flight > 1,
        "a cache that evicts holds one prompt at a time",
        ("in_flight=1",),
    ),
    Rule(
        "eviction-with-turns",
        (("kv_mode.policy", "`kv_mode.policy`"), ("turns", "prompts with `turns`")),
        lambda f: f.config.kv_mode.evicts and f.turns,
        "a conversation keeps its whole history in the cache, which grows with it",
        otherwise="choose a kv_mode without a policy, as kv_mode=f16",
    ),
    Rule(
        "more-sequences-than-a-context",
        (("swarm_size", "`swarm_size`"), ("in_flight", "`in_flight`, together above 256 sequences")),
        lambda f: f.sequences > MAX_SEQUENCES,
        f"they need {{sequences}} sequences, the engine has {MAX_SEQUENCES}",
        ("in_flight={most_in_flight}",),
        "lower swarm_size",
    ),
    Rule(
        "more-sequences-than-a-batch",
        (
            ("swarm_size", "`swarm_size`"),
            ("in_flight", "`in_flight`"),
            ("n_ubatch", "`n_ubatch` below their sequences"),
        ),
        lambda f: f.sequences > f.config.n_ubatch,
        "a step may decode a token of each of {sequences} sequences, the micro-batch holds fewer",
        ("n_ubatch={sequences}",),
    ),
    Rule(
        "more-sequences-than-a-chunk",
        (("swarm_size", "`swarm_size`"), ("kv_mode.chunk", "`kv_mode.chunk` below its sequences")),
        lambda f: f.config.kv_mode.evicts and f.sequences > f.config.kv_mode.chunk,
        "a step decodes a token of each of {sequences} sequences, no batch is longer than a chunk",
        ("kv_mode.chunk={sequences}",),
    ),
    Rule(
        "spilled-cache-in-one-pool",
        (("spill.kv", "`spill.kv=true`"), ("hardware", "unified memory")),
        lambda f: f.config.spill.kv and f.unified,
        "processor and GPU share the memory, a cache that leaves the GPU frees nothing",
        ("spill.kv=false",),
    ),
    Rule(
        "drafts-without-heads",
        (("speculative", "`speculative=mtp`"), ("model", "a model without draft heads")),
        lambda f: f.config.speculative == "mtp" and f.profile is not None and not f.profile.mtp_bytes,
        "the model's file has no heads for multi-token prediction",
        ("speculative=auto",),
    ),
)
