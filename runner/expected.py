"""What prompts come to before there is a tokenizer to count them with."""

from __future__ import annotations

from dataclasses import replace

from runner.config import PromptsConfig
from runner.kv_mode import QUESTION, ProbeConfig
from runner.planning.ask import Workload
from runner.planning.prefill import Asked
from runner.prompts import GENERATORS, Prompt, least_tokens, load_passages, load_prompts

_TEMPLATE_TOKENS = 40
"""About what a chat template adds; and what a generated question takes with it."""


def expected(prompts: PromptsConfig, prompt_tokens: int | None = None) -> Workload:
    """What prompts come to, as well as can be told without a tokenizer.

    Written texts are taken at 4 bytes a token, which is what English takes, half of the lower bound's 8.

    Args:
        prompts: the prompts.
        prompt_tokens: how long the longest is, where somebody knows; every document is then taken to be as long.

    Raises:
        PromptError: as :func:`runner.prompts.load_prompts` and :func:`runner.prompts.load_passages`.
    """
    least = least_tokens(prompts)
    texts = [_tokens(passage.text) for passage in load_passages(prompts, len)]
    scored = max([prompts.texts.tokens if prompts.texts.count else 0, *texts])
    if prompts.path is None and not prompts.items and prompts.name in GENERATORS:
        longest = max(prompts.tokens, scored)
        workload = Workload(
            longest, documents=True, prompts=prompts.count, score_tokens=scored, asked=_generated(prompts)
        )
    else:
        # Nothing that is written down is counted here, and prompts.system is no text of a prompt's own.
        written = load_prompts(replace(prompts, system=None), len)
        workload = Workload(
            max(2 * least + _TEMPLATE_TOKENS if written else 0, scored),
            score_tokens=scored,
            asks=bool(written),
            documents=any(prompt.document for prompt in written),
            prompts=len(written),
            conversation=any(prompt.turns for prompt in written),
            chats=any(prompt.messages or prompt.system for prompt in written),
            asked=tuple(_asked(prompt) for prompt in written if not prompt.turns),
        )
    if prompt_tokens is None:
        return workload
    asked = tuple(
        replace(item, document_tokens=max(prompt_tokens - item.question_tokens, 1))
        if item.document_tokens
        else replace(item, question_tokens=min(item.question_tokens, prompt_tokens))
        for item in workload.asked
    )
    return replace(workload, prompt_tokens=prompt_tokens, asked=asked)


def with_probe(workload: Workload, probe: ProbeConfig) -> Workload:
    """``workload`` with every question in the texts of ``probe``."""
    answer = _tokens(probe.answer)

    def asked(item: Asked) -> Asked:
        around = [answer + _tokens(text.replace(QUESTION, "")) for text in probe.texts]
        times = [text.count(QUESTION) for text in probe.texts]
        by_text = tuple(
            tuple((key, n * tokens + more) for key, tokens in item.probes)
            for n, more in zip(times, around, strict=True)
        )
        return replace(item, probes_by_text=by_text)

    return replace(workload, asked=tuple(map(asked, workload.asked)))


def _asked(prompt: Prompt) -> Asked:
    """A prompt that is written down."""
    before = sum(_tokens(message.content) for message in prompt.messages[:-1]) + _tokens(prompt.system or "")
    probes = prompt.probes or [prompt.question]
    return Asked(
        document=prompt.document,
        document_tokens=max(_tokens(prompt.document or ""), bool(prompt.document)),
        question_tokens=before + _tokens(prompt.question) + _TEMPLATE_TOKENS,
        probes_by_text=(tuple((text, before + _tokens(text) + _TEMPLATE_TOKENS) for text in probes),),
    )


def _generated(prompts: PromptsConfig) -> tuple[Asked, ...]:
    """The questions of a generator, ``facts`` about each document, fewer where one needs several."""
    of_document = prompts.facts // prompts.recall.needs if prompts.name == "recall" else prompts.facts
    return tuple(
        Asked(
            document=number // max(of_document, 1),
            document_tokens=max(prompts.tokens - _TEMPLATE_TOKENS, 1),
            question_tokens=_TEMPLATE_TOKENS,
            probes_by_text=(((number, _TEMPLATE_TOKENS),),),
        )
        for number in range(min(prompts.count, prompts.limit or prompts.count))
    )


def _tokens(text: str) -> int:
    return len(text.encode("utf-8", "replace")) // 4
