"""Teacher forcing: a text through the cache chunk by chunk, and what the model predicted for its tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from runner.engine.context import Context, Logits

Tokens = npt.NDArray[np.int32]


def score_rows(
    context: Context, tokens: Sequence[int], first: int, *, outputs: int
) -> Iterator[tuple[int, Logits, Tokens]]:
    """Logits for the tokens from index ``first`` on, as the text goes through the context, which is cleared.

    Where the context evicts it does so after every chunk, those of scored tokens too, as it would in a prompt.

    Args:
        context: of at least one sequence.
        tokens: the text.
        first: index of the first token to be scored, at least 1.
        outputs: how many rows of logits a batch may have.

    Yields:
        After every batch how many tokens have been read; rows float32 ``[n, n_vocab]``, none where nothing is
        scored yet; and the token that each row predicts, int32 ``[n]``. The next step overwrites the rows.

    Raises:
        EngineError: llama.cpp failed.
    """
    context.clear()
    n_ubatch = context.params.n_ubatch
    at, in_chunk = 0, 0
    while at < len(tokens):
        room = min(n_ubatch, context.chunk - in_chunk) if context.chunk else n_ubatch
        # Row i predicts token i + 1; rows that nobody wants stand in batches of their own.
        end = min(at + room, len(tokens), first - 1 if at < first - 1 else at + outputs)
        wanted = at >= first - 1
        logits = context.decode(tokens[at:end], range(at, end), [0] * (end - at), [wanted] * (end - at))
        targets = np.asarray(tokens[at + 1 : end + 1] if wanted else (), np.int32)
        yield end, logits[: len(targets)], targets
        in_chunk += end - at
        at = end
        if context.chunk and (in_chunk == context.chunk or at == len(tokens)):
            context.evict([0], "prefill")
            in_chunk = 0
