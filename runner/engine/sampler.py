"""How a worker picks its next token: llama.cpp's own sampler chain, fed only the tokens that can win.

Building a 49,000-entry candidate array eight times a step costs more than a tenth of a small model's decode.
With ``top_k`` on, all but a few dozen tokens are dropped by the chain's first step, so they are dropped here,
vectorised over the whole swarm, and the chain sees the rest: the same tokens with the same logits.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from collections import deque

import numpy as np
import numpy.typing as npt

from runner.config import SamplingConfig
from runner.engine.bindings import exp_sum, lib
from runner.engine.context import Logits
from runner.engine.weights import Weights
from runner.errors import ConfigError, EngineError

Ids = npt.NDArray[np.int32]

_TOKEN_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
_BLOCK = 64


def log_normalizers(logits: Logits) -> npt.NDArray[np.float64]:
    """``log(sum(exp(logits)))`` of each row: float32 [rows, n_vocab] -> float64 [rows]."""
    top, n_vocab = logits.max(axis=1), logits.shape[1]
    work = np.empty(n_vocab, np.float32)
    sums = np.empty(len(logits))
    for i, row in enumerate(np.ascontiguousarray(logits)):
        if exp_sum is not None:
            sums[i] = exp_sum(n_vocab, work.ctypes.data, row.ctypes.data, top[i])
        else:
            np.subtract(row, top[i], out=work)
            np.exp(work, out=work)
            sums[i] = work.sum()
    return np.asarray(top + np.log(sums))


def top_candidates(logits: Logits, k: int) -> list[Ids]:
    """For each row of ``logits`` [rows, n_vocab], ids that contain its k largest.

    The vocabulary is dealt into blocks of 64; the k-th largest of the blocks' maxima is a lower bound of the
    k-th largest logit and costs one pass, and only blocks that reach it are looked into. Block j holds the
    ids j, j + n_blocks, j + 2 n_blocks...: maxima along the long axis are what SIMD is good at.
    """
    rows, n_vocab = logits.shape
    n_blocks = n_vocab // _BLOCK
    dealt = n_blocks * _BLOCK
    if k <= 0 or n_blocks < k:
        return [np.arange(n_vocab, dtype=np.int32)] * rows
    peaks = logits[:, :dealt].reshape(rows, _BLOCK, n_blocks).max(axis=1)
    bounds = np.partition(peaks, n_blocks - k, axis=1)[:, n_blocks - k]
    offsets, rest = np.arange(_BLOCK)[:, None] * n_blocks, np.arange(dealt, n_vocab)
    found = []
    for row, peak, bound in zip(logits, peaks, bounds, strict=True):
        ids = np.concatenate([(offsets + np.flatnonzero(peak >= bound)).ravel(), rest])
        found.append(ids[row[ids] >= bound].astype(np.int32))
    return found


class Sampler:
    """One worker's chain: penalties, top_k, top_p, min_p, temperature, then a draw with the worker's seed.

    A grammar is asked afterwards, and only where it refuses the drawn token are all tokens filtered by it and
    one drawn again; most draws of a model that follows the grammar never pay for it.
    """

    def __init__(self, weights: Weights, config: SamplingConfig, seed: int) -> None:
        """Build the chain; ``seed`` is a uint32, and the grammar has passed :func:`check_grammar`."""
        self._handle = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        self._grammar = None
        penalised = config.repeat_penalty != 1.0 and config.repeat_last_n > 0
        self._recent: deque[int] = deque(maxlen=config.repeat_last_n if penalised else 0)
        steps = []
        if penalised:
            steps.append(
                lib.llama_sampler_init_penalties(
                    weights.n_vocab, config.repeat_last_n, config.repeat_penalty, 0.0, 0.0
                )
            )
        if config.top_k > 0:
            steps.append(lib.llama_sampler_init_top_k(config.top_k))
        if config.top_p < 1.0:
            steps.append(lib.llama_sampler_init_top_p(config.top_p, 1))
        if config.min_p > 0.0:
            steps.append(lib.llama_sampler_init_min_p(config.min_p, 1))
        steps += [lib.llama_sampler_init_temp(config.temperature), lib.llama_sampler_init_dist(seed)]
        for step in steps:
            lib.llama_sampler_chain_add(self._handle, step)
        if config.grammar is not None:
            self._grammar = _grammar(weights, config.grammar)

    def close(self) -> None:
        """Free the chain."""
        for handle in (self._handle, self._grammar):
            if handle:
                lib.llama_sampler_free(handle)
        self._handle = self._grammar = None

    def sample(self, row: Logits, candidates: Ids) -> int:
        """Draw a token from ``row`` [n_vocab] and remember it.

        ``candidates`` must contain the row's ``needed(config)`` largest logits.
        """
        if self._recent:
            # Penalties may also raise a token (repeat_penalty < 1), so the recent ones always stand.
            candidates = np.union1d(candidates, np.fromiter(self._recent, np.int32))
        token, _ = _apply(self._handle, candidates, row[candidates])
        if self._grammar is not None and not self._allows(token):
            every = np.arange(len(row), dtype=np.int32)
            _, filtered = _apply(self._grammar, every, row)
            if not np.isfinite(filtered).any():
                raise EngineError("sampling.grammar allows no token of this model here; mend the grammar")
            token, _ = _apply(self._handle, every, filtered)
        if self._grammar is not None:
            lib.llama_sampler_accept(self._grammar, token)
        lib.llama_sampler_accept(self._handle, token)
        self._recent.append(token)
        return token

    def _allows(self, token: int) -> bool:
        _, logits = _apply(self._grammar, np.array([token], np.int32), np.zeros(1, np.float32))
        return bool(np.isfinite(logits[0]))


def check_grammar(weights: Weights, config: SamplingConfig) -> None:
    """Refuse a grammar that does not parse, before anything is loaded for it.

    Raises:
        ConfigError: carries what llama.cpp's parser said.
    """
    if config.grammar is None:
        return
    # The parser writes to stderr, past every log callback: the file descriptor itself has to be turned.
    with tempfile.TemporaryFile() as said:
        sys.stderr.flush()
        kept = os.dup(2)
        os.dup2(said.fileno(), 2)
        try:
            grammar = _grammar(weights, config.grammar)
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        said.seek(0)
        reason = said.read().decode("utf-8", "replace").strip().partition("\n")[0]
    if not grammar:
        reason = reason.removeprefix("parse: ") or "it has no rule named root"
        raise ConfigError(f"sampling.grammar is no GBNF that llama.cpp can use: {reason}; mend the grammar")
    lib.llama_sampler_free(grammar)


def _grammar(weights: Weights, grammar: str) -> object:
    return lib.llama_sampler_init_grammar(weights.vocab, grammar.encode(), b"root")


def needed(config: SamplingConfig) -> int:
    """How many of the largest logits the chain may look at; 0 is all of them."""
    looked_at = 1 if config.temperature == 0 else config.top_k
    if looked_at == 0:
        return 0
    # A penalty can push each of the recent tokens below ones that stood behind it.
    return looked_at + (config.repeat_last_n if config.repeat_penalty != 1.0 else 0)


def _apply(sampler: object, ids: Ids, logits: Logits) -> tuple[int, Logits]:
    """Run a llama.cpp sampler over candidates [n]: the selected token (-1: none), the changed logits [n]."""
    data = np.zeros(len(ids), _TOKEN_DATA)
    data["id"], data["logit"] = ids, logits
    array = lib.llama_token_data_array(
        data=ctypes.cast(data.ctypes.data, lib.llama_token_data_p), size=len(ids), selected=-1, sorted=False
    )
    lib.llama_sampler_apply(sampler, ctypes.byref(array))
    token = int(data["id"][array.selected]) if array.selected >= 0 else -1
    return token, data["logit"]
