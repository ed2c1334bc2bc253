"""A document with what was kept of it marked, on a terminal and off it."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from rich.console import Console

from runner.engine.survivors import Kept
from runner.report.kept import caption, marked, visible
from runner.report.terminal import View


def kept(shares: list[float], *, heads: int = 20) -> Kept:
    """Heads of which these shares hold each token."""
    rows = [[at for at, share in enumerate(shares) if head < round(share * heads)] for head in range(heads)]
    longest = max(map(len, rows))
    # Heads keep equally many; what is left of a row is a token past the last.
    positions = np.array([row + [len(shares)] * (longest - len(row)) for row in rows])
    end = len(shares) + 1
    scores = np.zeros(positions.shape, np.float32)
    return Kept(positions, scores, tuple((0, head) for head in range(heads)), end, sinks=1, recent=0)


def tokens(text: str) -> list[bytes]:
    """A token a byte, and one past the last."""
    return [bytes([byte]) for byte in text.encode()] + [b""]


def plain(text: str, shares: list[float]) -> str:
    return marked(tokens(text), kept(shares), styled=False).plain.split("\n", 1)[1]


def test_what_a_third_of_the_heads_kept_is_marked() -> None:
    assert plain("abcdef", [0.2, 0.4, 1.0, 0.2, 0.0, 0.4]) == "a«bc»de«f»"


def test_a_long_run_that_hardly_any_head_kept_is_counted() -> None:
    text = "ab" + "x" * 30 + "c" + "y" * 15 + "d"
    shares = [1.0, 0.2] + [0.05] * 30 + [1.0] + [0.0] * 15 + [1.0]
    assert plain(text, shares) == "«a»b [... 30 tokens ...] «c»" + "y" * 15 + "«d»"


def test_a_character_spread_over_tokens_stays_whole_and_counts_as_its_most_kept_part() -> None:
    assert plain("a🦙é", [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]) == "a«🦙»é"
    half = marked([b"a", b"\xf0\x9f", b""], kept([1.0, 1.0]), styled=False).plain
    assert half.endswith("«a\ufffd»")


def test_a_text_with_guillemets_gets_other_marks() -> None:
    said = marked(tokens("«a"), kept([0.0, 0.0, 1.0]), styled=False).plain
    assert said.startswith("⟦⟧: ") and said.endswith("\n«⟦a⟧")


def test_styles_follow_the_share_of_the_heads() -> None:
    text = marked(tokens("abcd"), kept([0.05, 0.2, 0.5, 0.9]), styled=True)
    assert text.plain.split("\n")[1] == "abcd"
    assert [(text.plain[span.start : span.end], span.style) for span in text.spans][:3] == [
        ("a", "dim"), ("c", "bold"), ("d", "bold reverse"),
    ]  # fmt: skip


@pytest.mark.parametrize("styled", [True, False])
def test_the_document_is_inert(styled: bool) -> None:
    said = io.StringIO()
    console = Console(file=said, force_terminal=styled, color_system="standard" if styled else None, width=40)
    text = "\x1b]0;title\x07 [bold]b[/] \x9b2J \u202eevil\u2066 \u2028 \r \x7f"
    n = len(text.encode())
    View(console).kept("\x1b[2Jp", kept([1.0] * n), tokens(text))
    out = re.sub(r"\x1b\[[\d;]*m", "", said.getvalue())
    assert "␛]0;title␇ [bold]b[/] <U+009B>2J <U+202E>evil<U+2066> <U+2028> ␍ <U+007F>" in out
    assert set(out) & set("\x1b\x07\x9b\u202e\u2066\u2028\r\x7f") == set()
    assert ("\x1b[" in said.getvalue()) == styled and ("«" in out) != styled


def test_words_and_layout_stay() -> None:
    assert visible("a\n\tשלום 👨\u200d👩 نمی\u200cخواهم") == "a\n\tשלום 👨\u200d👩 نمی\u200cخواهم"


def test_the_caption_says_who_kept_what() -> None:
    assert caption("p", None, 12) == "kept of prompt p: all 12 tokens"
    said = caption("p", kept([1.0, 0.5]), 3)
    assert said.startswith("kept of prompt p: 2 of 3 tokens, by each of 20 heads; the first 1 and")
