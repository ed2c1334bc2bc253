"""The rules of KV modes that evict: what they cannot be combined with, and what would be no eviction at all."""

from __future__ import annotations

from kvcache.policies import POLICIES
from runner.planning.rules import Rule

_ATTENDING = ", ".join(f"`{name}`" for name, policy in POLICIES.items() if policy.needs == "attention")
_PROBING = ", ".join(f"`{name}`" for name, policy in POLICIES.items() if policy.probes)
_PROBES = ("kv_mode.policy", f"a `kv_mode.policy` that probes ({_PROBING})")
_LOOK_AWAY = "choose a policy that looks at none, as kv_mode=keydiff or kv_mode=window"

# The order is that of telling: of several broken rules the first one is named.
EVICTION_RULES: tuple[Rule, ...] = (
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
        "probes-that-nobody-asks",
        (
            ("probe", "`kv_mode.probe.*` or `kv_mode.guided.*`"),
            ("kv_mode.policy", "a policy that does not probe"),
        ),
        lambda f: bool(f.unread_options),
        "only a policy that probes reads {unread}, under any other it would be ignored",
        otherwise="choose kv_mode=guided, or leave the option out",
    ),
    Rule(
        "compaction-without-policy",
        (("kv_mode.positions", "`kv_mode.positions=compact` or `auto`"), ("kv_mode.policy", "no policy")),
        lambda f: f.config.kv_mode.positions != "original" and not f.config.kv_mode.evicts,
        "positions move together where tokens leave, and without a policy none does",
        ("kv_mode.positions=original",),
        "choose a policy, as kv_mode=guided",
    ),
    Rule(
        "compaction-of-fp8",
        (
            ("kv_mode.positions", "`kv_mode.positions=compact` or `auto`"),
            ("kv_mode.codec", "`kv_mode.codec=fp8`"),
        ),
        lambda f: f.config.kv_mode.compacts and f.config.kv_mode.codec == "fp8",
        "K is rotated once more after it was rounded to FP8, and would not be FP8 any longer",
        ("kv_mode.codec=none", "kv_mode.positions=original"),
    ),
    Rule(
        "probes-without-document",
        (_PROBES, ("bare", "a prompt without `document`")),
        lambda f: f.config.kv_mode.probes and f.bare and not f.turns,
        "the question guides how a document is read, and this prompt has none",
        otherwise="give its long part as `document`, or choose another kv_mode, as kv_mode=evict",
    ),
    Rule(
        "probes-of-scored-texts",
        (_PROBES, ("texts", "texts to score")),
        lambda f: f.config.kv_mode.probes and f.scores,
        "a text that is scored is not asked anything, so that no question could guide how it is read",
        otherwise="choose another kv_mode, as kv_mode=evict",
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
        "budget-below-probe",
        (("kv_mode.budget", "`kv_mode.budget`"), _PROBES),
        lambda f: f.config.kv_mode.probes and 0 < f.budget_cells < f.held_for_probe,
        "a budget holds the sinks, the recent tokens and at least as many as the longest probe, "
        "which has {probe}: {probed} together",
        ("kv_mode.budget={least_probed}",),
        "shorten the question or kv_mode.probe.texts",
    ),
    Rule(
        "probe-longer-than-chunk",
        (_PROBES, ("kv_mode.chunk", "`kv_mode.chunk` below the longest probe")),
        lambda f: f.config.kv_mode.probes and f.probe_tokens > f.config.kv_mode.chunk,
        "a probe is decoded at once, the longest has {probe} tokens, and no batch is longer than a chunk",
        ("kv_mode.chunk={probe}",),
        "shorten the question or kv_mode.probe.texts",
    ),
    Rule(
        "probe-longer-than-micro-batch",
        (_PROBES, ("n_ubatch", "`n_ubatch` below the longest probe")),
        lambda f: f.config.kv_mode.probes and f.probe_tokens > f.config.n_ubatch,
        "a probe is decoded at once, and the longest has {probe} tokens",
        ("n_ubatch={probe}",),
        "shorten the question or kv_mode.probe.texts",
    ),
    Rule(
        "chunks-that-leave-unasked",
        (
            ("kv_mode.probe.every", "`kv_mode.probe.every`"),
            ("kv_mode.chunk", "so many chunks but one that pass the recent tokens"),
        ),
        lambda f: (
            f.config.kv_mode.probes
            and f.budget_cells > 0
            and f.config.kv_mode.probe.every > f.most_chunks_a_probe
        ),
        "what came since the last probe must still be recent at the next one, or it leaves before it was asked "
        "about; {recent} of the cells are recent",
        ("kv_mode.probe.every={most_every}",),
        "lower kv_mode.chunk, or raise kv_mode.recent",
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
            and not f.config.kv_mode.compacts
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
        "more-sequences-than-a-chunk",
        (("swarm_size", "`swarm_size`"), ("kv_mode.chunk", "`kv_mode.chunk` below its sequences")),
        lambda f: f.config.kv_mode.evicts and f.sequences > f.config.kv_mode.chunk,
        "a step decodes a token of each of {sequences} sequences, no batch is longer than a chunk",
        ("kv_mode.chunk={sequences}",),
    ),
)
