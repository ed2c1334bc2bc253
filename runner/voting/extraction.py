"""From what a worker wrote to what it answered: a key that is equal exactly where the answers are."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runner.errors import ConfigError
from runner.voting.choices import find_choice, option_text
from runner.voting.numbers import find_number, is_number
from runner.voting.text import Found, Span, announced, boxed, normalise_text, visible


@dataclass(frozen=True)
class Extraction:
    """What was found in one text.

    ``key`` is the normalised answer, None where there is none (``reason`` says why); ``span`` is where it
    stands in the text, as (start, end) character offsets; ``rule`` is what saw it, ``none`` without a key.
    """

    kind: str
    key: str | None
    span: Span | None
    rule: str
    reason: str | None


def extract(
    text: str, kind: str | None = None, *, choices: Sequence[str] = (), pattern: str | None = None
) -> Extraction:
    """The answer in ``text``.

    Reasoning (``<think>...</think>``) is set aside first; a text that never leaves it has no answer.

    Args:
        text: a worker's whole text.
        kind: one of ``KINDS``; None is ``regex`` with a pattern, ``choice`` with choices, else ``text``.
        choices: the options' texts, in order; the key is the option's letter.
        pattern: for ``regex``: the last match counts, its first group where it has one. For ``list`` all
            matches count, in order: the key is theirs with a space between.

    Raises:
        ConfigError: an unknown kind, more than 26 choices, or a pattern that is missing or no
            regular expression.
    """
    kind = kind or ("regex" if pattern is not None else kind_of(None, choices))
    if kind not in KINDS:
        raise ConfigError(f"{kind!r} is no kind of answer; there are {', '.join(KINDS)}")
    shown = visible(text)
    found: Found | str
    if shown is None:
        found = "the reasoning never ends"
    elif not shown.strip():
        found = "the text is empty"
    else:
        found = KINDS[kind](shown, choices, pattern)
    if isinstance(found, str):
        return Extraction(kind, None, None, "none", found)
    return Extraction(kind, found.key, found.span, found.rule, None)


def normalise(value: str, kind: str, choices: Sequence[str] = ()) -> str | None:
    """The key of an expected answer, to compare with an extracted one; None if it is no answer of that kind.

    Raises:
        ConfigError: an unknown kind.
    """
    return extract(value, "text" if kind in ("regex", "list") else kind, choices=choices).key


def said(found: Extraction, text: str, choices: Sequence[str] = ()) -> str:
    """What ``text``, in which ``found`` was found, says of the matter; empty where that is nothing.

    A number, an option's own words for its letter, what a pattern found, or the whole text, reasoning set aside,
    where the answer is a yes, a no or a text.
    """
    if found.key is None or found.span is None:
        return ""
    if found.kind == "number":
        return found.key
    if found.kind == "choice":
        return option_text(found.key.upper(), choices)
    shown = visible(text) or ""
    return shown if found.kind == "boolean" else shown[slice(*found.span)]


def kind_of(expected: str | None, choices: Sequence[str] = ()) -> str:
    """The kind of a prompt that names none, by its options and answer: ``text`` unless they say more."""
    if choices:
        return "choice"
    if expected is not None and is_number(expected):
        return "number"
    if expected is not None and normalise_text(expected) in _TRUTH:
        return "boolean"
    return "text"


def _find_text(text: str) -> Found | str:
    key = normalise_text(text)
    start = len(text) - len(text.lstrip())
    return Found(key, (start, len(text.rstrip())), "whole") if key else "the text is only punctuation"


def _find_regex(text: str, pattern: str | None) -> Found | str:
    found = _matches(text, "regex", pattern)
    return found[-1] if found else "the pattern matches nothing"


def _find_list(text: str, pattern: str | None) -> Found | str:
    found = _matches(text, "list", pattern)
    if not found:
        return "the pattern matches nothing"
    return Found(" ".join(each.key for each in found), (found[0].span[0], found[-1].span[1]), "pattern")


def _matches(text: str, kind: str, pattern: str | None) -> list[Found]:
    """What ``pattern`` finds in ``text``, in order: of each match the first group where it has one.

    Raises:
        ConfigError: there is no pattern, or it is no regular expression.
    """
    if pattern is None:
        raise ConfigError(f"kind={kind} needs a pattern; set prompts.pattern")
    try:
        matches = list(re.finditer(pattern, text))
    except re.error as error:
        raise ConfigError(f"prompts.pattern={pattern!r} is no regular expression: {error}; mend it") from None
    found = []
    for match in matches:
        group = 1 if match.re.groups and match[1] is not None else 0
        if key := normalise_text(match[group]):
            found.append(Found(key, match.span(group), "pattern"))
    return found


_TRUTH = {"yes": "true", "true": "true", "no": "false", "false": "false"}
_OPEN_QUESTION = re.compile(r"\b(?:true|yes)\s*(?:or|/)\s*(?:false|no)\b", re.IGNORECASE)
_WORD = re.compile(r"(?P<not>\b(?:not|isn['’]t|never)\s+)?\b(?P<word>yes|no|true|false)\b", re.IGNORECASE)
_LEADING = re.compile(r"[\W_]*(?:that\s+is\s+|that['’]s\s+|it\s+is\s+|it['’]s\s+)?", re.IGNORECASE)
_NOUN = re.compile(r"\s+[a-z]")
_ALONE = re.compile(r"[*_\"')]*+(?:[.,;:!?\n]|\s*+$)")


def _find_boolean(text: str) -> Found | str:
    """The word that is boxed, announced or first, else the last "true" or "false" (negated or not), else a
    "yes" or "no" that stands alone: "no doubt" is no "no".
    """
    text = _OPEN_QUESTION.sub(lambda match: " " * len(match[0]), text)
    starts = [("boxed", start) for start, _ in boxed(text)]
    starts += [("announced", start) for start, _ in announced(text)]
    for rule, start in [*starts, ("start", 0)]:
        lead = _LEADING.match(text, start)
        match = _WORD.match(text, lead.end() if lead else start)
        if match and (match["word"].lower() != "no" or not _NOUN.match(text, match.end())):
            return _truth(match, rule)
    matches = list(_WORD.finditer(text))
    spoken = [match for match in matches if match["word"].lower() in ("true", "false")]
    alone = [match for match in matches if _ALONE.match(text, match.end())]
    last = (spoken or alone)[-1:]
    return _truth(last[0], "last") if last else "there is no yes, no, true or false"


def _truth(match: re.Match[str], rule: str) -> Found:
    key = _TRUTH[match["word"].lower()]
    if match["not"]:
        key = "false" if key == "true" else "true"
    return Found(key, match.span("word"), rule)


KINDS: dict[str, Callable[[str, Sequence[str], str | None], Found | str]] = {
    "number": lambda text, choices, pattern: find_number(text),
    "choice": lambda text, choices, pattern: find_choice(text, choices),
    "boolean": lambda text, choices, pattern: _find_boolean(text),
    "regex": lambda text, choices, pattern: _find_regex(text, pattern),
    "text": lambda text, choices, pattern: _find_text(text),
    "list": lambda text, choices, pattern: _find_list(text, pattern),
}
