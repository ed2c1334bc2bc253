"""The number that a text answers with, exact: ``3.14`` is not 14, ``**12**`` and ``$12.00`` are the same.

Nothing is rounded and no float is involved, so that two different numbers never share a key. What reads as
a number but is only part of one (a power, a date, a version, ``2,5``) is skipped rather than guessed.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from runner.voting.text import Found, announced, boxed

_MARK = r"['’_\u00a0\u2009\u202f]|\\[,;!:]"
_TOKEN = re.compile(
    rf"""(?<![A-Za-z_])(?!(?:USD|EUR|GBP|INR|CHF|Rs)\d)[A-Za-z][A-Za-z_]*\d(?:\w|[.,](?=\d))*    # H2O, v1.2
    |(?P<fraction>(?<![\d/.,])(?:(?P<whole>\d{{1,50}})\ +)?(?P<top>\d{{1,50}})\ ?/\ ?(?P<bottom>\d{{1,50}})
        (?![\d/]|[.,]\d))
    |(?P<latex>(?:(?P<lwhole>\d{{1,50}})\ *)?\\[dt]?frac\s*\{{\s*(?P<ltop>\d{{1,50}})\s*\}}
        \s*\{{\s*(?P<lbottom>\d{{1,50}})\s*\}})
    |(?P<run>(?<![\d.,])(?:[1-9]\d?(?:\ \d{{3}}){{2,}}|[1-9]\d{{0,2}}(?:\ \d{{3}})*\ 0\d\d(?:\ \d{{3}})*)
        (?:\.\d+)?(?![.,]?\d)|(?:\d|(?<![\w.])\.(?=\d))(?:\d|(?:[.,]|\{{,\}}|{_MARK})(?=\d))*)(?P<exponent>[eE][+\-−]?\d+(?!\w))?
    """,
    re.VERBOSE,
)
_PLAIN = re.compile(r"\d*(?:\.\d+)?")
_GROUPED = re.compile(  # 1,234,567.8; 1,23,456 (lakh); 1'234.5
    r"[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?|[1-9]\d?(?:,\d{2})+,\d{3}(?:\.\d+)?|[1-9]\d{0,2}(?:'\d{3})+(?:\.\d+)?"
)
_CONTINENTAL = re.compile(r"[1-9]\d{0,2}(?:\.\d{3})+,\d{1,2}|[1-9]\d{0,2}(?:\.\d{3}){2,}(?:,\d+)?")
_TIMES_TEN = re.compile(
    r"\s*(?:×|x|\*|·|\\times|\\cdot)\s*10\s*(?:(?:\^|\*\*)\s*\{?\s*([+\-−]?\d{1,4})(?!\d)\s*\}?|([⁺⁻]?[⁰¹²³⁴-⁹]{1,4}))"
)
_MAGNITUDE = re.compile(r"\s+(hundred|thousand|million|billion|trillion)s?\b|(k)\b", re.IGNORECASE)
_POWERS = {"hundred": 2, "thousand": 3, "k": 3, "million": 6, "billion": 9, "trillion": 12}
_SUPERSCRIPT = str.maketrans("⁺⁻⁰¹²³⁴⁵⁶⁷⁸⁹−", "+-0123456789-")
# In front of a number: a sign that is no hyphen and no operator, around a currency.
_SIGN = re.compile(r"(?:^|(?<=[^\w)\]}.%\-−–]))([-−–－])?(?:\\?[$€£¥₹]\s?)?(?<![\w)\]}.%])([-−－])?$")
_BOUND_BEFORE = re.compile(r"(?:\^\s*\{?\s*[-+−]?|√|\\sqrt\s*\{?\s*|\d[/:])$")
_BOUND_AFTER = re.compile(r"\s*(?:\^|π|√|\\pi\b|\\sqrt\b)|[eE][+\-−]?\d|[/:]\d")
_CHAIN = re.compile(
    r"(?=[^=]*[-+−*/×÷·])(?:[^=\n\w]|\d|\b(?!(?:because|since|as|so|which|where|when|given|from)\b)[a-z]+\b)*=\s*",
    re.IGNORECASE,
)
_HASHES = re.compile(r"####[\s*$€£-]*(?=[\d.])")
_HEADING = re.compile(r"[.):]\s+\w")


@dataclass(frozen=True)
class Number:
    """A number in a text: its exact key and where it stands, sign and currency not included."""

    key: str
    start: int
    end: int


def find_number(text: str) -> Found | str:
    """The number that is boxed, else behind ``####``, else announced, else the last; or why there is none."""
    numbers = list(scan(text))
    if not numbers:
        digits = any(character.isdigit() for character in text)
        return "no number stands alone" if digits else "there is no number"
    for start, end in boxed(text):
        inside = [number for number in numbers if start <= number.start and number.end <= end]
        if inside:
            return _found(inside[-1], "boxed")
    for match in reversed(list(_HASHES.finditer(text))):
        behind = next((number for number in numbers if number.start == match.end()), None)
        if behind and not _HEADING.match(text, behind.end):
            return _found(behind, "hashes")
    for start, end in announced(text):
        inside = [number for number in numbers if start <= number.start < end]
        if inside:
            return _found(_result(text, inside), "announced")
    return _found(numbers[-1], "last")


def _found(number: Number, rule: str) -> Found:
    return Found(number.key, (number.start, number.end), rule)


def _result(text: str, numbers: list[Number]) -> Number:
    """The first of ``numbers``, or where it opens a sum (``3 + 4 = 7``) what that comes to."""
    result = numbers[0]
    for number in numbers[1:]:
        chain = _CHAIN.match(text, result.end)
        if chain is None:
            break
        if number.start >= chain.end():
            result = number
    return result


def is_number(text: str) -> bool:
    """Whether ``text`` is one number and nothing else but a currency, a percent sign or emphasis."""
    numbers = list(scan(text))
    if len(numbers) != 1:
        return False
    around = text[: numbers[0].start] + text[numbers[0].end :]
    return re.fullmatch(r"[\s$€£¥₹%+\-−*_`.\\{}]*", re.sub(r"\\boxed|^\s*####", "", around)) is not None


def scan(text: str) -> Iterator[Number]:
    """Every number in ``text`` that stands for itself, in order."""
    done = 0
    for match in _TOKEN.finditer(text):
        if match.start() < done or not (match["run"] or match["fraction"] or match["latex"]):
            continue
        for number in _run(text, match) if match["run"] else _fraction(text, match):
            yield number
            done = number.end


def _negative(text: str, start: int) -> bool:
    sign = _SIGN.search(text, max(0, start - 6), start)
    return sign is not None and bool(sign[1]) != bool(sign[2])


def _bound(text: str, start: int, end: int) -> bool:
    """Whether what stands from ``start`` to ``end`` is part of something else: a power, a root, a date."""
    following = text[end : end + 1]
    return (
        _BOUND_BEFORE.search(text, max(0, start - 10), start) is not None
        or _BOUND_AFTER.match(text, end) is not None
        or (following != "" and unicodedata.category(following) == "No")
    )


def _run(text: str, match: re.Match[str]) -> Iterator[Number]:
    run = re.sub(rf"{_MARK}|\ ", "'", match["run"].replace("{,}", ","))
    start = match.start()
    if _PLAIN.fullmatch(run):
        digits = run
    elif _GROUPED.fullmatch(run):
        digits = run.replace(",", "").replace("'", "")
    elif _CONTINENTAL.fullmatch(run):
        digits = run.replace(".", "").replace(",", ".")
    else:
        parts = run.split(",")
        if len(parts) > 2 and all(_PLAIN.fullmatch(part) for part in parts):
            for part in parts:
                yield Number(_key(part, 0, False), start, start + len(part))
                start += len(part) + 1
        return
    exponent, end = _scale(text, match)
    if abs(exponent) < 10_000 and not _bound(text, start, end):
        yield Number(_key(digits, exponent, _negative(text, start)), start, end)


def _scale(text: str, match: re.Match[str]) -> tuple[int, int]:
    """The power of ten that a run of digits is written with, and where that ends."""
    if match["exponent"]:
        return _power(match["exponent"][1:]), match.end()
    end, exponent = match.end(), 0
    if times := _TIMES_TEN.match(text, end):
        return _power(times[1] or times[2]), times.end()
    while word := _MAGNITUDE.match(text, end):
        exponent += _POWERS[(word[1] or word[2]).lower()]
        end = word.end()
    return exponent, end


def _power(written: str) -> int:
    written = written.translate(_SUPERSCRIPT)
    return int(written) if len(written) < 8 else 10**8


def _fraction(text: str, match: re.Match[str]) -> Iterator[Number]:
    prefix = "l" if match["latex"] else ""
    whole = int(match[f"{prefix}whole"] or 0)
    top, bottom = int(match[f"{prefix}top"]), int(match[f"{prefix}bottom"])
    start, end = match.span()
    if bottom == 0 or _bound(text, start, end):
        return
    if whole and top >= bottom:
        whole, start = 0, match.start(f"{prefix}top")
    value = (whole + Fraction(top, bottom)) * (-1 if _negative(text, start) else 1)
    yield Number(_fraction_key(value), start, end)


def _fraction_key(value: Fraction) -> str:
    """The decimal where there is one, since 1/2 and 0.5 are one number; else the fraction in lowest terms."""
    places = value.denominator.bit_length()  # enough: 2 and 5 divide it less often than that
    scaled = value * 10**places
    if scaled.denominator == 1:
        return _key(str(abs(scaled.numerator)), -places, value < 0)
    return f"{value.numerator}/{value.denominator}"


def _key(digits: str, exponent: int, negative: bool) -> str:
    """One spelling a value: no leading or trailing zeros, no exponent unless it saves more than 30 zeros."""
    whole, _, part = "".join(c if c == "." else str(unicodedata.decimal(c)) for c in digits).partition(".")
    significant = (whole + part).lstrip("0")
    trimmed = significant.rstrip("0")
    if not trimmed:
        return "0"
    exponent += len(significant) - len(trimmed) - len(part)
    sign = "-" if negative else ""
    if 0 <= exponent <= 30:
        return f"{sign}{trimmed}{'0' * exponent}"
    if exponent < 0 and -exponent - len(trimmed) <= 30:
        padded = trimmed.rjust(1 - exponent, "0")
        return f"{sign}{padded[:exponent]}.{padded[exponent:]}"
    return f"{sign}{trimmed}e{exponent}"
