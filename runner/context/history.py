"""What a turn of a conversation goes on from: the turns before it, or a summary of those that are not sent."""

from __future__ import annotations

from dataclasses import dataclass

from runner.prompts import Message, Prompt


@dataclass(frozen=True)
class History:
    """The ``messages`` so far, questions and answers in turn, and the text that stands before the first of them.

    That text is the conversation's document or, with ``summarised``, the summary of all that came before
    ``messages``.
    """

    document: str | None = None
    messages: tuple[Message, ...] = ()
    summarised: bool = False

    def __len__(self) -> int:
        """Questions that were asked and answered."""
        return len(self.messages) // 2

    def first(self, count: int) -> History:
        """The history as it was after ``count`` of its answers."""
        return History(self.document, self.messages[: 2 * count], self.summarised)

    def after(self, asked: str, reply: str) -> History:
        """The history with one more question and its answer."""
        more = (Message("user", asked), Message("assistant", reply))
        return History(self.document, self.messages + more, self.summarised)

    def with_summary(self, count: int, summary: str) -> History:
        """The history with ``summary`` in place of its document and the first ``count`` questions."""
        return History(summary, self.messages[2 * count :], summarised=True)

    def turn(self, conversation: Prompt, number: int) -> Prompt:
        """Turn ``number`` of a conversation, counted from 1, as a prompt of its own after this history."""
        turn = conversation.turns[number - 1]
        return Prompt(
            id=conversation.turn_id(number),
            messages=[*self.messages, Message("user", turn.content)],
            document=self.document,
            answer=turn.answer,
            choices=turn.choices,
            kind=turn.kind,
            pattern=turn.pattern,
            system=conversation.system,
            meta=conversation.meta,
        )
