"""``full``: the whole document stands in the window."""

from __future__ import annotations

from runner.context.base import PreparedPrompt, Strategy, Tokenizer, messages_of
from runner.prompts import Prompt


class Full(Strategy):
    """Sends everything; the plan refuses what does not fit."""

    name = "full"

    def prepare(self, prompt: Prompt, engine: Tokenizer) -> PreparedPrompt:
        """See :meth:`Strategy.prepare`."""
        tokens = engine.encode(prompt.id, messages_of(prompt), prompt.document)
        return PreparedPrompt(
            prompt=prompt,
            strategy=self.name,
            document=tokens.document,
            question=tokens.question,
            tokens_in=len(tokens.document) + len(tokens.question),
            evidence=prompt.document,
        )
