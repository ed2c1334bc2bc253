"""From rows of logits to what each token cost, and how far the rows are from a reference's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Logits = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]
Rows = Iterable[tuple[Logits, Ids]]
"""Logits float32 ``[n, n_vocab]`` with the token that each row predicts, piece by piece."""

_BLOCK = 16
"""Rows that are turned into float64 at a time: a few MB, whatever the vocabulary."""


class Compared(Protocol):
    """What rows are compared with."""

    @property
    def logits(self) -> Logits:
        """Of the same tokens, float32 ``[n, n_vocab]``."""


@dataclass(frozen=True)
class Measured:
    """One value a token, in nats where it has a unit.

    Attributes:
        nll: float64, negative log-likelihood.
        kl: float64, KL(reference || these rows); None without a reference.
        agrees: whether the most likely token is the reference's; None without a reference.
    """

    nll: Floats
    kl: Floats | None = None
    agrees: Bools | None = None

    def __len__(self) -> int:
        """Tokens that were scored."""
        return len(self.nll)


def measure(rows: Rows, reference: Compared | None = None) -> Measured:
    """What ``rows`` make of their tokens, in float64; ``reference`` has rows for the same tokens, or for more."""
    nll, kl, agrees, at = [np.empty(0)], [np.empty(0)], [np.empty(0, np.bool_)], 0
    for logits, tokens in rows:
        for begin in range(0, len(tokens), _BLOCK):
            block, targets = logits[begin : begin + _BLOCK], tokens[begin : begin + _BLOCK]
            logprobs = log_softmax(block)
            nll.append(-logprobs[np.arange(len(targets)), targets])
            if reference is not None:
                other = reference.logits[at : at + len(targets)]
                expected = log_softmax(other)
                # Rounding alone can make a sum of differences that cancel a little negative.
                kl.append(np.maximum((np.exp(expected) * (expected - logprobs)).sum(axis=1), 0.0))
                agrees.append(block.argmax(axis=1) == other.argmax(axis=1))
            at += len(targets)
    if reference is None:
        return Measured(np.concatenate(nll))
    return Measured(np.concatenate(nll), np.concatenate(kl), np.concatenate(agrees))


def log_softmax(logits: Logits) -> Floats:
    """Log-probabilities in float64 of float32 ``[n, n_vocab]``, row by row."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted
