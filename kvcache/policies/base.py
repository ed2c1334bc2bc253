"""What a policy is: it scores the tokens that a layer's heads hold; the lowest scores leave the cache.

A policy is a frozen dataclass in a file of its own, named after its paper or after what it measures. Its fields
are its options. It implements :meth:`Policy.score` and nothing else; what may never leave, how neighbours share
their scores and how many tokens stay is the selector's business (:mod:`kvcache.selection`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

Needs = Literal["nothing", "attention", "keys"]


@dataclass(frozen=True)
class HeldTokens:
    """The tokens that one layer's KV heads hold, as a policy sees them: arrays ``[n_head_kv, n_cells]``.

    Column ``i`` is the same cell for all heads, but each head may hold another token in it, and the columns are in
    no order.

    Attributes:
        positions: int64, each token's true position in its text.
        mass: float32, the attention probability that the observed queries gave it, to the power of the policy's
            ``moment``, summed over the query heads that share the KV head, decayed as the policy says; zeros where
            the policy needs none.
        queries: float32, how many of those queries could see it, decayed alike.
        asked: float32, the attention that the probes gave it, a mean over a probe's queries and the query heads
            and the most that any probe gave; zeros where the policy does not probe.
        end: the position that the next token will have.
        read_keys: the K rows as float32 ``[n_head_kv, n_cells, head_dim]``; only to be called by a policy that
            needs keys.
        read_values: the V rows as float32 ``[n_head_kv, n_cells, head_dim]``; None where the cache keeps no V
            beside K (MLA).
    """

    positions: Ints
    mass: Floats
    queries: Floats
    asked: Floats
    end: int
    read_keys: Callable[[], Floats]
    read_values: Callable[[], Floats] | None


class Policy(ABC):
    """Scores tokens; see the module.

    Attributes:
        needs: ``attention`` excludes flash attention, whose graph has no probabilities; ``keys`` reads K.
        decay: what is left of mass and queries from one eviction to the next.
        observed: how many queries of a chunk of prefill are observed, the last ones; None is all of them.
        reads_values: whether it looks at V where there is one.
        moment: to which power each probability is summed: 1 is attention's mass, 2 weighs peaks.
        probes: whether it wants to know what the questions would look at (``HeldTokens.asked``).
    """

    needs: ClassVar[Needs]
    reads_values: ClassVar[bool] = False
    moment: ClassVar[int] = 1
    probes: ClassVar[bool] = False
    decay: float = 1.0
    observed: float | None = None

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: one is outside its sense.
        """
        for option in fields(self):  # type: ignore[arg-type]  # every policy is a dataclass
            value = getattr(self, option.name)
            least = 1 if option.name == "observed" else 0
            if value is not None and not value >= least:
                raise ValueError(f"{option.name}={value:g} is too little, it is at least {least}")
            if option.name == "decay" and value > 1:
                raise ValueError(f"decay={value:g} is too much, it is what is left: at most 1")

    @abstractmethod
    def score(self, held: HeldTokens) -> Floats:
        """How much each token is worth keeping, float32 ``[n_head_kv, n_cells]``; only the order counts.

        Where heads or layers choose together their scores are averaged, so they should be of one scale.
        """
