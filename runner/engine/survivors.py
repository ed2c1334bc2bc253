"""What every head kept of a text, token by token, and a sample of it that is small enough to write down."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvcache.policies import Floats
from kvcache.policies.base import Ints
from runner.engine.weights import Weights


@dataclass(frozen=True)
class Kept:
    """What was left of a text after one eviction of its prefill.

    Attributes:
        positions: true positions, int64 ``[n_rows, n_kept]``, a row a KV head, in no order.
        scores: the policy's, before they were pooled, float32 of the same shape; NaN where a token was kept for
            what it is, a sink or recent, or could not be judged yet.
        heads: the block and the KV head of each row; empty where all heads keep the same and one row is all.
        end: the position after the last token read.
        sinks, recent: how many of the first and of the last tokens read were kept for what they are.
    """

    positions: Ints
    scores: Floats
    heads: tuple[tuple[int, int], ...]
    end: int
    sinks: int
    recent: int

    def shares(self) -> Floats:
        """Which share of the heads of all layers holds each token read, float32 ``[end]``."""
        counts = np.bincount(self.positions.ravel(), minlength=self.end)
        return (counts / len(self.positions)).astype(np.float32)


@dataclass(frozen=True)
class Survivor:
    """A row of ``survivors`` but for its job and prompt; the columns are described there."""

    layer: int
    head: int
    position: int
    token: str
    score: float | None
    sampled: float


def sample_survivors(
    kept: Kept, tokens: Sequence[int], vocabulary: Weights, *, per_head: int, seed: str
) -> list[Survivor]:
    """``per_head`` of each head's tokens, all alike likely; none where all heads keep the same.

    Args:
        kept: what there is to choose from.
        tokens: of the text, by true position.
        vocabulary: the model's.
        per_head: rows a head, or fewer where it keeps fewer.
        seed: the same one chooses the same.
    """
    rng = random.Random(seed)
    n_kept = kept.positions.shape[1]
    n_rows = min(per_head, n_kept)
    order = np.argsort(kept.positions, axis=1)
    survivors = []
    for row, (block, head) in enumerate(kept.heads if n_rows else ()):
        for place in sorted(rng.sample(range(n_kept), n_rows)):
            at = order[row, place]
            position, score = int(kept.positions[row, at]), float(kept.scores[row, at])
            token = vocabulary.piece(tokens[position], special=True)
            survivors.append(
                Survivor(
                    layer=block,
                    head=head,
                    position=position,
                    token=token.decode("utf-8", "backslashreplace"),
                    score=score if np.isfinite(score) else None,
                    sampled=n_rows / n_kept,
                )
            )
    return survivors
