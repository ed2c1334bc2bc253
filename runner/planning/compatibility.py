"""Which options cannot work together, why, and what to type instead: one table, and the check against it.

:mod:`runner.planning.compatibility_page` makes ``docs/compatibility.md`` of :data:`RULES`. What merely does not
fit, memory or window, is no matter of this table: a plan refuses that with the bytes or tokens missing.
"""

from __future__ import annotations

from runner.errors import ConfigError
from runner.planning.eviction_rules import EVICTION_RULES
from runner.planning.facts import Facts
from runner.planning.rules import Rule
from runner.planning.sequences import MAX_SEQUENCES


def check(facts: Facts) -> None:
    """Refuse options that exclude each other.

    Raises:
        ConfigError: the first rule that the job breaks, in one line with the reason and the remedy.
    """
    for rule in RULES:
        if rule.applies(facts):
            raise ConfigError(rule.line(facts))


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
        "shortened-turns",
        (
            ("context_strategy", "a `context_strategy` that shortens documents"),
            ("turns", "prompts with `turns`"),
        ),
        lambda f: f.config.context_strategy.name != "full" and f.turns,
        "what the first question does not need of a document a later one may ask for",
        ("context_strategy=full",),
        "window.on_refusal=compress shortens conversations",
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
    *EVICTION_RULES,
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
