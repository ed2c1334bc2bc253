"""Summaries that the model itself writes of a conversation that no longer fits its window."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from runner.context.base import Tokenizer, TokenParts, messages_of
from runner.context.history import History
from runner.errors import PlanRefusedError
from runner.prompts import Prompt

HEADING = "Summary of the conversation so far:\n"
LEAST_TOKENS = 32
"""A summary of fewer tokens says nothing."""

_REQUEST = (
    "Write a summary of this conversation in at most {words} words. Keep every name, number, fact and decision. "
    "Answer with the summary only."
)

Writer = Callable[[TokenParts, int], tuple[str, bool]]
"""From a request's tokens and the most tokens of an answer to that answer, and whether it was cut there."""


@dataclass(frozen=True)
class Summary:
    """``history`` without its earlier turns; it took ``requests``, and ``cut`` says that one of them ran out."""

    history: History
    requests: int
    cut: bool

    @property
    def text(self) -> str:
        """What stands for the earlier turns."""
        return self.history.document or ""


def summarise(
    history: History, conversation: Prompt, tokenizer: Tokenizer, *, window: int, limit: int, write: Writer
) -> Summary:
    """``history`` as a summary of at most ``limit`` tokens.

    Where it does not fit ``window`` together with the request, as many turns as do are summarised first, then
    that summary with those that follow.

    Raises:
        PlanRefusedError: one turn alone leaves no room for a summary, or the model wrote none.
    """
    requests, cut = 0, False
    while history.messages:
        count, tokens, room = _most(history, conversation, tokenizer, window=window, limit=limit)
        text, was_cut = write(tokens, room)
        if not text.strip():
            raise PlanRefusedError(
                f"conversation {conversation.id!r} could not be compressed: the model's summary is empty; "
                "choose another model, or a larger window"
            )
        history = history.with_summary(count, HEADING + text.strip())
        requests, cut = requests + 1, cut or was_cut
    return Summary(history, requests, cut)


def _most(
    history: History, conversation: Prompt, tokenizer: Tokenizer, *, window: int, limit: int
) -> tuple[int, TokenParts, int]:
    """How many turns from the first can be summarised at once, the tokens that ask for it, and the answer's."""
    asked = 0
    for count, tokens in _requests(history, conversation, tokenizer, limit):
        asked = len(tokens.document) + len(tokens.question)
        room = min(limit, window - asked)
        if room == limit or (count == 1 and room >= LEAST_TOKENS):
            return count, tokens, room
    raise PlanRefusedError(
        f"conversation {conversation.id!r} cannot be compressed: one of its turns alone takes {asked} tokens to "
        f"have it summarised, the window is {window}; choose a larger window or a smaller kv_mode, or shorten it"
    )


def _requests(
    history: History, conversation: Prompt, tokenizer: Tokenizer, limit: int
) -> Iterator[tuple[int, TokenParts]]:
    """Requests for a summary of fewer and fewer turns.

    The turns stand in a document, not in the chat: a small model goes on with a chat in its manner and does not
    step out of it to look back, and the conversation's own system text would speak into the summary.
    """
    for count in range(len(history), 0, -1):
        prompt = Prompt(
            id=f"{conversation.id} (summary)",
            prompt=_REQUEST.format(words=limit // 2),
            document=transcript(history.first(count)),
        )
        yield count, tokenizer.encode(prompt.id, messages_of(prompt), prompt.document)


def transcript(history: History) -> str:
    """The conversation as one text, what stood before it first."""
    lines = [f"{message.role.capitalize()}: {message.content}" for message in history.messages]
    return "\n\n".join([history.document, *lines] if history.document else lines)
