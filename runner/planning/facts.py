"""What is known of a job when its options are held against each other (:mod:`runner.planning.compatibility`)."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from kvcache import budget
from runner.config import JobConfig
from runner.kv_mode import GuidedConfig, ProbeConfig
from runner.planning.hardware.budget import Hardware
from runner.planning.model.profile import ModelProfile

WITHOUT_FLASH = frozenset({"grok"})
"""Architectures for which llama.cpp forces flash attention off (``llama_init_from_model``)."""


@dataclass(frozen=True)
class Facts:
    """A job's config and what it meets; what is not known yet breaks no rule.

    Attributes:
        config: the job as composed.
        profile: the model; None before it is known.
        hardware: the memory there is; None before it was looked up.
        chats: whether prompts have messages or a system text of their own.
        turns: whether prompts have turns.
        in_flight: prompts that are really decoded at once, which may be fewer than ``config.in_flight``.
        sequences: what a context must hold; 0 before it is known.
        prompt_tokens: the longest prompt; 0 before it is known.
        probe_tokens: the longest probe; 0 without any, or before it is known.
        bare: whether a prompt that is asked has no document.
        scores: whether there are texts to score.
    """

    config: JobConfig
    profile: ModelProfile | None = None
    hardware: Hardware | None = None
    chats: bool = False
    turns: bool = False
    in_flight: int = 1
    sequences: int = 0
    prompt_tokens: int = 0
    probe_tokens: int = 0
    bare: bool = False
    scores: bool = False

    @property
    def budget_cells(self) -> int:
        """Cells that an eviction leaves; 0 without one, or before it is known."""
        return self.config.kv_mode.budget_cells(self.prompt_tokens)

    @property
    def recent_cells(self) -> int:
        """Of these cells, those of recent tokens."""
        return max(self.config.kv_mode.selector.recent_cells(self.budget_cells), 0)

    @property
    def held_for_probe(self) -> int:
        """Cells of the sinks, the recent tokens and as many as the longest probe has."""
        return self.config.kv_mode.sinks + self.recent_cells + self.probe_tokens

    @property
    def least_probed_budget(self) -> int:
        """A budget that is as large as that, with its own recent tokens; 0 where none is."""
        mode = self.config.kv_mode
        return mode.sinks + math.ceil(self.probe_tokens / (1 - mode.recent) - 1e-9) if mode.recent < 1 else 0

    @property
    def most_chunks_a_probe(self) -> int:
        """Every how many chunks there must be a probe, so that none leaves before it was asked about."""
        return 1 + self.recent_cells // self.config.kv_mode.chunk

    @property
    def unread_options(self) -> tuple[str, ...]:
        """``kv_mode.probe.*`` and ``kv_mode.guided.*`` that are not as they come, where nothing reads them."""
        mode = self.config.kv_mode
        groups = (("probe", mode.probe, ProbeConfig()), ("guided", mode.guided, GuidedConfig()))
        found = [
            f"kv_mode.{name}.{field.name}"
            for name, group, plain in groups
            for field in fields(group)
            if not mode.probes and getattr(group, field.name) != getattr(plain, field.name)
        ]
        return tuple(found)

    @property
    def sliding_window(self) -> int:
        """Tokens that sliding-window layers see; 0 where there is none."""
        return self.profile.sliding_window if self.profile is not None else 0

    @property
    def least_sliding_budget(self) -> int:
        """Cells that an eviction must leave so that sliding-window layers have their window; 0 without any.

        Where heads choose for themselves, the cells that stay are those with the newest positions. A window
        gives some of them to the sinks.
        """
        window, mode = self.sliding_window, self.config.kv_mode
        return window + mode.sinks if window and mode.needs == "nothing" else window

    @property
    def quantised_v(self) -> bool:
        """Whether V is stored in blocks."""
        return budget.is_quantised(self.config.kv_mode.v)

    @property
    def without_flash(self) -> bool:
        """Whether llama.cpp has no flash attention for the model."""
        return self.profile is not None and self.profile.arch in WITHOUT_FLASH

    @property
    def one_row(self) -> bool:
        """Whether a layer keeps one compressed row for K and V (MLA)."""
        layers = self.profile.groups if self.profile is not None else ()
        return any(layer.kind != "recurrent" and not layer.head_dim_v for layer, _ in layers)

    @property
    def unified(self) -> bool:
        """Whether processor and GPU share one memory."""
        return self.hardware is not None and self.hardware.unified

    @property
    def odd_k_head(self) -> int:
        """Elements of a head that the blocks of K do not fill; 0 where they fill all.

        With flash attention llama.cpp refuses them; without it, it reads the heads at wrong places and gives NaN.
        """
        dims = [layer.head_dim_k for layer, _ in self.profile.groups] if self.profile is not None else []
        return _odd(self.config.kv_mode.k, dims)

    @property
    def odd_v_head(self) -> int:
        """The same of V."""
        dims = [layer.head_dim_v for layer, _ in self.profile.groups] if self.profile is not None else []
        return _odd(self.config.kv_mode.v, dims)


def _odd(kv_type: str, dims: list[int]) -> int:
    block, _ = budget.KV_TYPES[kv_type]
    return next((dim for dim in dims if dim % block), 0)
