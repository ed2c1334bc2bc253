"""Reading prompts and refusing, before anything is fetched, a set that cannot be used."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import cast

from runner.config import AnswerKind, PromptsConfig
from runner.errors import ConfigError, PromptError
from runner.prompts.documents import read_document
from runner.prompts.needle import needle_prompts
from runner.prompts.prompt import Passage, Prompt, Turn, parse_prompt
from runner.prompts.recall import check_recall, recall_prompts
from runner.prompts.texts import passages
from runner.voting import extract, kind_of, normalise

GENERATORS: dict[str, Callable[[PromptsConfig, Callable[[str], int]], list[Prompt]]] = {
    "needle": needle_prompts,
    "recall": recall_prompts,
}
"""Where the prompts of a job come from that has none written down, by ``prompts.name``."""

_BYTES_PER_TOKEN = 8
"""More text than any tokenizer in use gets into a token on average; see :func:`least_tokens`."""


def load_prompts(config: PromptsConfig, count_tokens: Callable[[str], int]) -> list[Prompt]:
    """What the job asks, in order, ids unique; none where it has texts to score alone (:func:`load_passages`).

    Raises:
        PromptError: the file is missing, empty or has a bad line (its number is named), an id repeats, or an
            answer, kind and pattern do not go together; a document is empty or cannot be read.
        ConfigError: a document is HTML or PDF, and the ``documents`` extra is not installed.
    """
    rows = _written(config)
    if rows is None:
        rows = list(GENERATORS[config.name](config, count_tokens))
    return [_completed(row, config) for row in rows[: config.limit] if isinstance(row, Prompt)]


def load_passages(config: PromptsConfig, count_tokens: Callable[[str], int]) -> list[Passage]:
    """The texts that the job scores: rows of kind ``score``, then what ``prompts.texts`` cuts out.

    Raises:
        PromptError: as :func:`load_prompts`; a source of ``prompts.texts`` is missing or too short; an id of a
            text that is cut out is a prompt's.
    """
    written = _written(config) or []
    cut = passages(config.texts, count_tokens)
    taken = {row.id for row in written}
    for passage in cut:
        if passage.id in taken:
            raise PromptError(
                f"prompts.texts: the id {passage.id!r} is used twice, the other is a prompt's; rename that one"
            )
    return [row for row in written[: config.limit] if isinstance(row, Passage)] + cut


def _completed(prompt: Prompt, config: PromptsConfig) -> Prompt:
    """``prompt`` with what the config says for all, its kind decided, and both known to be usable."""
    system = prompt.system if prompt.system is not None else config.system
    if not prompt.turns:
        kind, pattern = _kind(prompt, config, prompt.id)
        return replace(prompt, kind=kind, pattern=pattern, system=system)
    turns = []
    for number, turn in enumerate(prompt.turns, 1):
        kind, pattern = _kind(turn, config, prompt.turn_id(number))
        turns.append(replace(turn, kind=kind, pattern=pattern))
    return replace(prompt, turns=turns, system=system)


def _kind(asked: Prompt | Turn, config: PromptsConfig, prompt_id: str) -> tuple[AnswerKind, str | None]:
    """How the answer to ``asked`` is read, and by which pattern."""
    pattern = asked.pattern or config.pattern
    kind = asked.kind or config.kind or ("regex" if pattern else kind_of(asked.answer, asked.choices))
    try:
        extract("anything", kind, choices=asked.choices, pattern=pattern)
    except ConfigError as error:
        raise PromptError(f"prompt {prompt_id!r}: {error}") from None
    if asked.answer is not None and normalise(asked.answer, kind, asked.choices) is None:
        raise PromptError(
            f"prompt {prompt_id!r}: its answer {asked.answer!r} is no {kind}; mend the answer or the kind"
        )
    return cast(AnswerKind, kind), pattern


def least_tokens(config: PromptsConfig) -> int:
    """A lower bound of the longest prompt, in tokens, before there is a tokenizer to count with.

    It lets the formula refuse what can never fit without downloading the model first. Of a conversation the
    first turn counts: the later ones are for its window to hold or to refuse.

    Raises:
        PromptError: as :func:`load_prompts`.
    """
    rows = _written(config)
    cut = config.texts.tokens // 2 if config.texts.count else 1
    if rows is None:
        return max(config.tokens // 2, cut)
    texts = []
    for row in rows:
        if isinstance(row, Passage):
            texts.append(row.text)
            continue
        _completed(row, config)
        asked = "".join(m.content for m in row.messages) if row.messages else row.question
        texts.append((row.document or "") + asked)
    return max(cut, max((len(text.encode()) for text in texts), default=0) // _BYTES_PER_TOKEN)


def _written(config: PromptsConfig) -> list[Prompt | Passage] | None:
    """The rows that somebody wrote down, which may be none; None where they are to be generated."""
    if config.path is not None:
        return _with_document(_unique(_read_jsonl(Path(config.path).expanduser()), config.path), config)
    if config.items:
        rows = (parse_prompt(item, f"prompts.items[{i}]", f"p{i + 1}") for i, item in enumerate(config.items))
        return _with_document(_unique(rows, "prompts.items"), config)
    if config.document is not None and config.name in (*GENERATORS, "texts"):
        raise PromptError(
            f"prompts.document is what prompts of your own are about, prompts={config.name} writes its own; "
            "set prompts.items=[...] or prompts.path=FILE.jsonl, or drop prompts.document"
        )
    if config.name == "texts" and config.texts.count:
        return []
    if config.name == "recall":
        check_recall(config)
    if config.name not in GENERATORS:
        raise PromptError(
            f"prompts={config.name} has no prompts; set prompts.path=FILE.jsonl or prompts.items=[...]"
        )
    return None


def _with_document(rows: list[Prompt | Passage], config: PromptsConfig) -> list[Prompt | Passage]:
    """``rows``, with ``prompts.document`` for those that ask and have none of their own."""
    if config.document is None:
        return rows
    try:
        document = read_document(config.document)
    except PromptError as error:
        raise PromptError(f"prompts.document: {error}") from None
    return [
        replace(row, document=document) if isinstance(row, Prompt) and row.document is None else row
        for row in rows
    ]


def _read_jsonl(path: Path) -> Iterable[Prompt | Passage]:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except FileNotFoundError:
        raise PromptError(f"there is no prompt file {path}; set prompts.path to a JSONL file") from None
    except UnicodeDecodeError as error:
        raise PromptError(f"{path} is not UTF-8 text (byte {error.start}); prompts are JSON lines") from None
    except OSError as error:
        raise PromptError(
            f"{path} cannot be read: {error.strerror}; set prompts.path to a JSONL file"
        ) from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = (
                f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
            )
            raise PromptError(f"{where}: no valid JSON ({reason}); mend the line") from None
        yield parse_prompt(row, where, f"p{number}", path.parent)


def _unique(prompts: Iterable[Prompt | Passage], source: str) -> list[Prompt | Passage]:
    owners: dict[str, str] = {}
    found = []
    for prompt in prompts:
        names = {prompt.id: ""}
        if isinstance(prompt, Prompt):
            names |= {
                prompt.turn_id(number): f" (turn {number} of {prompt.id!r})"
                for number in range(1, len(prompt.turns) + 1)
            }
        for name, owner in names.items():
            if name in owners:
                raise PromptError(
                    f"{source}: the id {name!r} is used twice{owner or owners[name]}; "
                    "ids name rows, so make them unique"
                )
        owners |= names
        found.append(prompt)
    if not found:
        raise PromptError(f"{source} holds no prompts; write one JSON object a line")
    return found
