"""Questions about a file, whose answers are voted on by how far it says them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from commands import runner
from pdfs import pdf

from runner.tables import load
from runner.voting import Ballot, extract, said, support, tally

DOCUMENT = "The pass code of vault K3 is 4821."
QUESTION = "What is the pass code of vault K3? Answer with the number."
ITEMS = (
    f"[{{id: code, prompt: '{QUESTION}', answer: 4821}}, {{id: own, prompt: 'Who?', document: 'Anna did.'}}]"
)
FEW = ("swarm_size=3", "sampling.max_tokens=20", "n_threads=1")


def test_a_vote_by_the_evidence_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "report.pdf").write_bytes(pdf(DOCUMENT, "It was opened in 1850."))
    done = runner(
        tmp_path, f"prompts.items={ITEMS}", "prompts.document=report.pdf", "vote=evidence",
        *FEW,
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr == "", done.stderr
    t = load(tmp_path)
    assert t.prompts["document_digest"].nunique() == 2
    for row in t.prompts.itertuples():
        question = QUESTION if row.prompt_id == "code" else "Who?"
        evidence = f"{DOCUMENT}\n\nIt was opened in 1850." if row.prompt_id == "code" else "Anna did."
        answers = t.generations[t.generations["prompt_id"] == row.prompt_id]
        shares = [
            support(said(extract(text, row.kind), text), evidence, question) for text in answers["text"]
        ]
        assert [None if pd.isna(share) else share for share in answers["support"]] == shares
        assert answers["support"][answers["answer"].isna()].isna().all()
        # The table is all that a tally needs.
        ballots = [
            Ballot(answer.worker, answer.answer, answer.text, support=share)
            for answer, share in zip(answers.itertuples(), shares, strict=True)
        ]
        vote = tally(ballots, "evidence")
        [voted] = t.votes[t.votes["prompt_id"] == row.prompt_id].to_dict("records")
        assert (voted["rule"], voted["winner"], voted["votes"]) == ("evidence", vote.winner, vote.votes)
    code = t.generations[(t.generations["prompt_id"] == "code") & (t.generations["answer"] == "4821")]
    assert len(code) and (code["support"] == 1.0).all()


@pytest.mark.parametrize("vote", ["majority", "evidence"])
def test_without_a_document_there_is_no_support(vote: str, tmp_path: Path) -> None:
    done = runner(tmp_path, "prompts.items=[Name a colour.]", f"vote={vote}", *FEW)
    assert done.returncode == 0, done.stderr
    t = load(tmp_path)
    assert t.generations["support"].isna().all() and t.votes["rule"].tolist() == [vote]


def test_a_path_from_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSWARM_CACHE", str(tmp_path / "no-model"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    done = runner(tmp_path, "prompts.items=[Why?]", "prompts.document=~/none.md")
    assert done.returncode == 2
    assert (
        "~no-such-user/a: there is no such home folder"
        in runner(tmp_path, "prompts.document=~no-such-user/a").stderr
    )
    assert f"prompts.document: there is no document {tmp_path}/home/none.md; name a" in done.stderr
