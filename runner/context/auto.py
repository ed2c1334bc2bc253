"""``auto``: whole documents where they fit; else what prefills the least of what fits the memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from runner.context.base import Engine, Fit, PreparedPrompt, Shortening, Strategy
from runner.context.full import Full
from runner.context.room import room_of
from runner.prompts import Prompt


@dataclass(frozen=True)
class _Choice:
    """What is done with documents that do not fit: ``shorten`` them or, where that is None, read them guided."""

    shorten: Shortening | None
    overrides: tuple[str, ...]
    reason: str


class Auto(Strategy):
    """Decides once for all prompts of a job, since they share its memory and may share documents.

    A prompt that fits whole, with the weights resident, is sent whole. For the others, of the strategies that the
    memory has room for, a guided reading among them, the one that would prefill the least is taken.
    """

    name = "auto"

    def __init__(self, strategies: Sequence[Shortening], prompts: Sequence[Prompt]) -> None:
        """``strategies`` are chosen from, ``prompts`` are all that the job asks."""
        self._strategies, self._prompts = strategies, prompts
        self._whole: dict[str, PreparedPrompt] = {}
        self._fits: list[tuple[int, Fit]] = []
        self._chosen: _Choice | None = None

    def prepare(self, prompt: Prompt, engine: Engine) -> PreparedPrompt:
        """See :meth:`Strategy.prepare`."""
        item = self._item(prompt, engine)
        fit = self._fit(item, engine)
        if fit.fits or prompt.document is None:
            return replace(item, reason=f"auto: {fit.reason}")
        if self._chosen is None:
            self._chosen = self._choose(engine)
        choice = self._chosen
        reason = f"auto: {fit.reason}; {choice.reason}"
        if choice.shorten is None:
            return replace(item, overrides=choice.overrides, reason=reason)
        return replace(choice.shorten.prepare(prompt, engine), reason=reason)

    def _choose(self, engine: Engine) -> _Choice:
        """The cheapest of what fits; where nothing does, of all, for the plan to refuse with remedies."""
        items = [self._item(prompt, engine) for prompt in self._prompts]
        long = [
            item for item in items if item.prompt.document is not None and not self._fit(item, engine).fits
        ]
        short = sum(item.tokens_sent for item in items) - sum(item.tokens_sent for item in long)
        costs: list[tuple[int, str, _Choice]] = []
        fits = engine.fit([_shortened(item, engine) for item in long]).fits
        reading = engine.guided(items)
        for strategy in self._strategies if fits or reading is None else ():
            tokens = short + strategy.prefill_tokens(long, engine)
            costs.append((tokens, strategy.name, _Choice(strategy, (), "")))
        if reading is not None:
            costs.append((reading.prefill_tokens, "guided", _Choice(None, reading.overrides, "")))
        costs.sort(key=lambda cost: cost[:2])
        [(tokens, name, choice), *others] = costs
        reason = f"{name} prefills the least, about {tokens:,} tokens for the job"
        if others:
            reason += "; " + ", ".join(f"{other} {more:,}" for more, other, _ in others)
        if not fits and reading is not None:
            reason = f"a window of {engine.window_tokens:,} tokens does not fit either, {name} does"
        return replace(choice, reason=reason)

    def _item(self, prompt: Prompt, engine: Engine) -> PreparedPrompt:
        if prompt.id not in self._whole:
            self._whole[prompt.id] = Full().prepare(prompt, engine)
        return self._whole[prompt.id]

    def _fit(self, item: PreparedPrompt, engine: Engine) -> Fit:
        """Whether ``item`` fits, asked anew only where lengths known before do not tell."""
        for tokens, fit in self._fits:
            if item.tokens_sent <= tokens if fit.fits else item.tokens_sent >= tokens:
                return fit
        fit = engine.fit([item])
        self._fits.append((item.tokens_sent, fit))
        return fit


def _shortened(item: PreparedPrompt, engine: Engine) -> PreparedPrompt:
    """``item`` as long as a shortened prompt may be."""
    return replace(item, document=item.document[: room_of(item.prompt, engine)])
