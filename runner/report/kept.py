"""A document as the model was left with it: what many heads kept stands out, what hardly any did is left out."""

from __future__ import annotations

import codecs
import itertools
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

if TYPE_CHECKING:
    from runner.engine.survivors import Kept

_FEW, _MANY, _MOST = 1 / 10, 1 / 3, 2 / 3
"""Shares of the heads: below the first a token is all but gone, from the second on it counts as kept."""

_LONG = 16
"""Tokens that hardly any head kept, from which on such a run is left out where there are no styles."""

_MARKS = (("«", "»"), ("⟦", "⟧"))
"""Around what was kept where there are no styles; the second where the text has the first itself."""

_JOINERS = "\u200c\u200d"
"""Format characters that belong to words and emoji."""


@dataclass(frozen=True)
class _Unit:
    """Whole characters, how many tokens they are spread over, and the share of heads that kept any of those."""

    text: str
    n_tokens: int
    share: float


def visible(text: str) -> str:
    """``text`` with everything shown that a terminal would obey: control characters, marks of direction."""
    return "".join(map(_shown, text))


def caption(prompt_id: str, kept: Kept | None, n_tokens: int) -> str:
    """What stayed of a prompt's text of ``n_tokens`` tokens, in a line."""
    name = f"kept of prompt {visible(prompt_id)}"
    if kept is None:
        return f"{name}: all {n_tokens} tokens"
    n_kept = kept.positions.shape[1]
    who = f"by each of {len(kept.heads)} heads" if kept.heads else "the same by every head"
    said = f"{name}: {n_kept} of {kept.end} tokens, {who}"
    if kept.sinks + kept.recent:
        said += f"; the first {kept.sinks} and the last {kept.recent} by all, whatever they say"
    return said


def marked(pieces: Sequence[bytes], kept: Kept, *, styled: bool) -> Text:
    """The text that was read, with what was kept of it marked.

    Args:
        pieces: the bytes of each token, by position; those from ``kept.end`` on were not read yet.
        kept: what stayed.
        styled: mark by style: dim, plain, bold, reverse by the share of heads that kept a token. Else what a
            third of the heads kept stands between marks, and long runs of what fewer than a tenth kept are
            counted and left out. A first line says which.
    """
    units = list(_units(pieces[: kept.end], kept.shares().tolist()))
    return _in_styles(units) if styled else _in_marks(units)


def _in_styles(units: Sequence[_Unit]) -> Text:
    text = Text(
        "dim: kept by fewer than a tenth of the heads; bold: by a third or more; reverse: by two thirds\n"
    )
    for style, same in itertools.groupby(units, lambda unit: _style(unit.share)):
        text.append("".join(visible(unit.text) for unit in same), style)
    return text


def _style(share: float) -> str:
    if share < _FEW:
        return "dim"
    if share < _MANY:
        return ""
    return "bold" if share < _MOST else "bold reverse"


def _in_marks(units: Sequence[_Unit]) -> Text:
    whole = "".join(unit.text for unit in units)
    left, right = next((pair for pair in _MARKS if not set(pair) & set(whole)), _MARKS[0])
    text = Text(f"{left}{right}: kept by a third of the heads or more; left out: by fewer than a tenth\n")
    for level, same in itertools.groupby(units, lambda unit: (unit.share >= _FEW) + (unit.share >= _MANY)):
        run = list(same)
        said, n_tokens = "".join(visible(unit.text) for unit in run), sum(unit.n_tokens for unit in run)
        if level == 0 and n_tokens >= _LONG:
            said = f" [... {n_tokens} tokens ...] "
        elif level == 2:
            said = f"{left}{said}{right}"
        text.append(said)
    return text


def _units(pieces: Sequence[bytes], shares: Sequence[float]) -> Iterator[_Unit]:
    """Tokens, joined where a character is spread over several; what is no UTF-8 becomes U+FFFD."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text, n_tokens, share = "", 0, 0.0
    for piece, held in zip(pieces, shares, strict=True):
        text, n_tokens, share = text + decoder.decode(piece), n_tokens + 1, max(share, held)
        if not decoder.getstate()[0]:
            yield _Unit(text, n_tokens, share)
            text, n_tokens, share = "", 0, 0.0
    if n_tokens:
        yield _Unit(text + decoder.decode(b"", final=True), n_tokens, share)


def _shown(character: str) -> str:
    if character in "\n\t" or character in _JOINERS:
        return character
    category = unicodedata.category(character)
    if category not in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return character
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)  # the control pictures
    return f"<U+{code:04X}>"
