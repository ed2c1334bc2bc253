"""Which of the options a text answers with: by its letter, or by its words; "A good way" is neither.

A letter counts only where it stands as a label: alone, before punctuation, before a verb that speaks of it,
or before its own option's text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from string import ascii_uppercase

from runner.errors import ConfigError
from runner.voting.text import Found, announced, boxed, normalise_text

_UNKNOWN_OPTIONS = ascii_uppercase[:10]
# Possessive throughout: a worker that repeats itself for a thousand tokens must not cost a second to read.
_LEAD = r"[\s*_`\"'(\[{$<>#-]*+(?:\\(?:text|textbf|mathrm|mathbf)\s*+\{[\s*_`\"'(\[{]*+)?+"
_AHEAD = re.compile(rf"(?P<lead>{_LEAD})(?:the\s++)?+", re.IGNORECASE)
_LINE_LEAD = _LEAD.replace(r"\s", r" \t")
_NAMED = r"(?:(?:the\s++)?(?:correct\s++)?(?:option|choice|letter|answer)\s++(?:is\s++)?+[*_`\"'(\[{]*+)?+"
_CLOSED = re.compile(r"[\s*_`]*(?:$|\n|\.(?!\w)|[,;:!?()\]}\"`>|/*_]|'(?!\w)|[-–—](?=\s))")
_SPOKEN_OF = re.compile(r"[\s*_`]+(?:is|was|because|since|as|seems|would|must|should)\b", re.IGNORECASE)
_REJECTED = re.compile(r"[\s*_`)\]\"']*(?:is|was)(?:n't|\s+(?:not|wrong|incorrect|false))\b", re.IGNORECASE)
_CHOSEN = (
    r"\b(?:option|choice|letter|choose|chose|pick|picked|select|selected|go(?:ing)?\s+with|say|guess|think|believe|"
    r"so|thus|hence|therefore|it['’]s|(?:it|this|that|correct|option|choice)\s+is|(?:must|should|would|to)\s+be),?\s+"
    r"[*_`\"'(\[]*"
)


@dataclass(frozen=True)
class _Options:
    """Labels (upper case) and the options' texts; texts are empty where the options are not known."""

    labels: tuple[str, ...]
    texts: tuple[str, ...]

    @classmethod
    def of(cls, choices: Sequence[str]) -> _Options:
        """Options that carry their own labels (``B``, ``(B) Paris``) keep them, others are A, B, C, ..."""
        if not choices:
            return cls(tuple(_UNKNOWN_OPTIONS), ("",) * len(_UNKNOWN_OPTIONS))
        own = [
            re.fullmatch(r"\s*\(?([A-Za-z])(?:[.):]\s+(.*)|\)?\s*)", choice, re.DOTALL) for choice in choices
        ]
        if len(choices) > len(ascii_uppercase):
            raise ConfigError(f"{len(choices)} choices are more than there are letters; ask with 26 at most")
        labels = [match[1].upper() for match in own if match]
        if len(set(labels)) == len(choices):
            return cls(tuple(labels), tuple(match[2] or "" for match in own if match))
        return cls(tuple(ascii_uppercase[: len(choices)]), tuple(choices))

    def pattern(self) -> str:
        """A regular expression for one label, in either case, with nothing of a word beside it."""
        letters = "".join(self.labels) + "".join(self.labels).lower()
        return rf"(?<![\w\-])(?<!\w['’])(?P<label>[{letters}])(?![\w+#]|['’]\w)"


def find_choice(text: str, choices: Sequence[str]) -> Found | str:
    """The chosen option's label as key, or why there is none; without ``choices`` the labels are A to J.

    Raises:
        ConfigError: more choices than letters.
    """
    options = _Options.of(choices)
    if found := _exact(text, options):
        return found
    mentions = list(_mentions(text, options))
    words = {mention.start(): Found(label, mention.span(), "") for label, mention in mentions}
    leading = re.compile(_LEAD + _NAMED + options.pattern(), re.IGNORECASE)
    for rule, spans in (("boxed", boxed(text)), ("announced", announced(text))):
        for start, end in spans:
            match = leading.match(text, start)
            if match and match.start("label") < end and _stands(text, match, options, certain=True):
                return _label(match, rule)
            ahead = _AHEAD.match(text, start)
            if ahead and (named := words.get(ahead.end("lead")) or words.get(ahead.end())):
                return replace(named, rule=rule)
    first = leading.match(text)
    if first and _stands(text, first, options):
        return _label(first, "start")
    for rule, matches in (("line", _lines(text, options)), ("chosen", _chosen(text, options))):
        if matches:
            return _label(matches[-1], rule)
    return _bracketed(text, options) or _mentioned(mentions)


def option_text(label: str, choices: Sequence[str]) -> str:
    """The words of the option that ``label`` names; empty where it has none that are known."""
    options = _Options.of(choices)
    return dict(zip(options.labels, options.texts, strict=True)).get(label, "")


def _label(match: re.Match[str], rule: str) -> Found:
    return Found(match["label"].upper(), match.span("label"), rule)


def _exact(text: str, options: _Options) -> Found | None:
    said = normalise_text(text)
    for label, option in zip(options.labels, options.texts, strict=True):
        if said and said == normalise_text(option):
            start = len(text) - len(text.lstrip())
            return Found(label, (start, len(text.rstrip())), "option")
    return None


def _stands(text: str, match: re.Match[str], options: _Options, *, certain: bool = False) -> bool:
    """Whether the letter that ``match`` found is a label and no article, pronoun or initial."""
    letter, end = match["label"], match.end("label")
    if _REJECTED.match(text, end):
        return False
    if _CLOSED.match(text, end):
        return True
    option = options.texts[options.labels.index(letter.upper())]
    if option and normalise_text(text[end : end + 2 * len(option) + 20]).startswith(normalise_text(option)):
        return True
    if letter.upper() == "I":
        return False
    if _SPOKEN_OF.match(text, end):
        return True
    return certain and letter.isupper() and letter != "A"


def _lines(text: str, options: _Options) -> list[re.Match[str]]:
    """Lines that hold a label and nothing else."""
    closing = r"[ \t*_`\"')\]}.$]*+$"
    return list(re.finditer(r"^" + _LINE_LEAD + _NAMED + options.pattern() + closing, text, re.I | re.M))


def _chosen(text: str, options: _Options) -> list[re.Match[str]]:
    """Labels that a sentence chooses ("I pick B", "option C") or confirms ("B is correct")."""
    named = re.compile(_CHOSEN + options.pattern(), re.IGNORECASE)
    confirmed = re.compile(
        options.pattern() + r"[)\]*_`\"']*\s+is\s+(?:the\s+)?(?:correct|right|best|true)\b", re.I
    )
    found = [match for match in named.finditer(text) if _stands(text, match, options)]
    return sorted([*found, *confirmed.finditer(text)], key=lambda match: match.start("label"))


def _bracketed(text: str, options: _Options) -> Found | None:
    """The one label that is set off by brackets or emphasis, if there is only one."""
    matches = list(re.finditer(r"(?:\(|\[|\*\*|__)" + options.pattern() + r"(?=\)|\]|\*\*|__)", text, re.I))
    labels = {match["label"].upper() for match in matches}
    return _label(matches[-1], "bracketed") if len(labels) == 1 else None


def _mentions(text: str, options: _Options) -> Iterator[tuple[str, re.Match[str]]]:
    """Every place where an option's own words stand; a longer option's words are not a shorter one's."""
    patterns = {
        f"option{place}": r"\s+".join(map(re.escape, normalise_text(option).split()))
        for place, option in enumerate(options.texts)
    }
    longest_first = sorted(
        (name for name in patterns if patterns[name]), key=lambda name: -len(patterns[name])
    )
    if longest_first:
        any_option = "|".join(f"(?P<{name}>{patterns[name]})" for name in longest_first)
        mention = re.compile(rf"(?<!\w)(?<!\d[.,])(?:{any_option})(?!\w|[.,]\d)", re.IGNORECASE)
        for match in mention.finditer(text):
            yield options.labels[list(patterns).index(str(match.lastgroup))], match


def _mentioned(mentions: list[tuple[str, re.Match[str]]]) -> Found | str:
    labels = sorted({label for label, _ in mentions})
    if len(labels) == 1:
        return Found(labels[0], mentions[-1][1].span(), "option")
    return f"several options are named: {', '.join(labels)}" if labels else "no option is named"
