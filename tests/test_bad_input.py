"""What a person gets wrong ends in one line that says what to do, a status that is not 0, and no traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import one_line, runner
from pdfs import encrypted, pdf

from runner.tables import load

TINY = ("prompts.items=[Why?]", "sampling.max_tokens=2", "swarm_size=1")


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("model=smolm2", ("model=smolm2", "did you mean smollm2", "qwen35b")),
        ("modle=smollm2", ("modle", "did you mean model", "prompts")),
        ("sampling.temprature=1", ("sampling.temprature", "did you mean temperature", "top_k")),
        ("kv_mode=h3o", ("kv_mode=h3o", "did you mean h2o", "fp8_window", "snapkv")),
        ("kv_mode.policy=nix", ("kv_mode.policy='nix'", "there are none, window, h2o, peak, guided, mean")),
        ("kv_mode.budget=0", ("kv_mode.budget=0: give a whole number of cells, at least 1, or a share",)),
        ("kv_mode.chunk=8", ("kv_mode.chunk=8", "greater than or equal to 16")),
        ("kv_mode.granularity=cell", ("kv_mode.granularity='cell'", "'head', 'layer' or 'token'")),
        ("kv_mode=q7", ("kv_mode=q7", "q8_0", "k8v4")),
        ("swarm_size=0", ("swarm_size.workers=0", "greater than or equal to 1")),
        ("swarm_size=-1", ("swarm_size.workers=-1", "greater than or equal to 1")),
        ("swarm_size=five,3", ("mixes numbers and named options",)),
        ("swarm_size=", ("swarm_size= has no value",)),
        ("swarm_size=1,3", ("swarm_size.workers", "add -m")),
        ("sampling.temperature=-0.5", ("sampling.temperature=-0.5", "greater than or equal to 0")),
        ("sampling.top_p=0", ("sampling.top_p=0", "greater than 0")),
        ("sampling.min_p=2", ("sampling.min_p=2", "less than or equal to 1")),
        ("sampling.max_tokens=lots", ("sampling.max_tokens='lots'", "integer")),
        ("hardware.ram=12Gx", ("hardware.ram", "12GiB")),
        ("nonsense", ("nonsense",)),
        ("smapling.top_k=3", ("smapling.top_k", "did you mean sampling")),
        ("swarm_size=5.5", ("swarm_size.workers=5.5", "integer")),
        ("sampling.top_k=4294967297", ("sampling.top_k", "2147483647")),
        ("prompts.depths=[]", ("prompts.depths=[]", "at least 1")),
        ("prompts.facts=1000", ("prompts.facts=1000", "100")),
        ("sampling.stop.first=x", ("do not compose", "--cfg job")),
    ],
)
def test_a_wrong_word_or_value(argument: str, said: tuple[str, ...], tmp_path: Path) -> None:
    line = one_line(runner(tmp_path, argument))
    assert all(part in line for part in said), line


def test_a_missing_model_file(tmp_path: Path) -> None:
    line = one_line(runner(tmp_path, "model.path=nowhere.gguf"))
    assert "nowhere.gguf" in line and "model.path" in line
    [job] = load(tmp_path).jobs.to_dict("records")
    assert (job["status"], job["reason"]) == ("failed", line.removeprefix("error: "))


def test_a_file_that_is_no_gguf(tmp_path: Path) -> None:
    (tmp_path / "notes.gguf").write_text("These are notes, not weights." * 100)
    assert "notes.gguf is not a GGUF file" in one_line(runner(tmp_path, "model.path=notes.gguf", *TINY))


@pytest.mark.parametrize("share", [0.001, 0.5, 0.999])
def test_a_truncated_gguf(share: float, tmp_path: Path, smollm2: Path) -> None:
    whole = smollm2.read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[: int(len(whole) * share)])
    line = one_line(runner(tmp_path, "model.path=cut.gguf", *TINY))
    assert "cut.gguf" in line and "fetch" in line


def prompts(folder: Path, *lines: str) -> str:
    (folder / "p.jsonl").write_text("\n".join(lines))
    return "prompts.path=p.jsonl"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], ("p.jsonl", "holds no prompts")),
        (["", "  "], ("p.jsonl", "holds no prompts")),
        (['{"id": "a", "prompt": "x"}', '{"id": "b", "prompt": '], ("p.jsonl, line 2", "no valid JSON")),
        (['{"id": "a", "prompt": "x"}', "", '{"id": "a", "prompt": "y"}'], ("'a' is used twice",)),
        (['{"prompt": "x", "anwser": "y"}'], ("line 1", "unknown key 'anwser'", "did you mean 'answer'")),
        (['{"id": "a"}'], ("line 1", "one of `prompt`, `messages` and `turns`")),
        (['{"id": "a", "prompt": "  "}'], ("line 1", "question is empty")),
        (['{"id": "a", "prompt": 7}'], ("line 1", "prompt=7", "string")),
        (['{"messages": [{"role": "boss", "content": "x"}]}'], ("line 1", "messages.0.role='boss'")),
        (['[1, 2]'], ("line 1", "a JSON object")),
        (['{"prompt": "x", "answer": "many", "kind": "number"}'], ("'p1'", "'many' is no number")),
        (['{"prompt": "x", "kind": "regex"}'], ("'p1'", "needs a pattern")),
        (['{"prompt": "x", "pattern": "(["}'], ("'p1'", "no regular expression")),
    ],
)  # fmt: skip
def test_a_bad_prompt_file(lines: list[str], said: tuple[str, ...], tmp_path: Path) -> None:
    line = one_line(runner(tmp_path, prompts(tmp_path, *lines)))
    assert all(part in line for part in said), line


def test_documents_too_short_for_their_facts(tmp_path: Path) -> None:
    line = one_line(runner(tmp_path, "prompts.tokens=128", "prompts.facts=50"))
    assert "prompts.tokens=128 has no room for prompts.facts=50; set prompts.tokens=" in line


def test_a_failed_cell_of_a_sweep_is_a_row(tmp_path: Path) -> None:
    """Also where it fails before anything is known of its model or prompts."""
    done = runner(
        tmp_path, "-m", "flash_attn=off", "kv_mode=q8_0,q4_0", "prompts.path=none.jsonl,gone.jsonl", *TINY[1:]
    )
    assert done.returncode == 1
    jobs = load(tmp_path).jobs
    assert jobs["status"].tolist() == ["failed"] * 4
    assert jobs["reason"].str.contains("no prompt file").all()


def test_a_missing_or_binary_prompt_file(tmp_path: Path) -> None:
    assert "no prompt file" in one_line(runner(tmp_path, "prompts.path=none.jsonl"))
    (tmp_path / "p.jsonl").write_bytes(b"\xff\xfe\x00binary")
    assert "not UTF-8" in one_line(runner(tmp_path, "prompts.path=p.jsonl"))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("photo.png", b"\x89PNG\r\n\x1a\n\0", "photo.png is not UTF-8 text (byte 0); save it as UTF-8, or"),
        ("data.txt", b"abc\0", "data.txt looks binary (byte 3 is NUL); give text, Markdown, HTML or PDF"),
        ("none.md", None, "there is no document none.md; name a text, Markdown, HTML or PDF file, or a folder"),
        ("empty.txt", b"", "empty.txt is empty; give a document that says something"),
        ("damaged.pdf", pdf("A text.")[:200], "damaged.pdf is no PDF that can be read ("),
        ("locked.pdf", encrypted(pdf("A text."), "secret"), "locked.pdf is encrypted; save a copy of it without"),
        ("scan.pdf", pdf(""), "scan.pdf has no text on its pages, as a scan has none; run OCR over it, or"),
        ("folder/photo.png", b"\x89PNG\0", "folder holds no documents with text in them; name a folder of"),
    ],
)  # fmt: skip
def test_a_document_that_is_none(name: str, content: bytes | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    if content is not None:
        path.write_bytes(content)
    line = one_line(runner(tmp_path, *TINY, f"prompts.document={name.split('/')[0]}"))
    assert line.startswith(f"error: prompts.document: {said}")
    assert load(tmp_path).jobs["status"].tolist() == ["failed"]


def test_a_prompt_without_the_document_that_it_names(tmp_path: Path) -> None:
    row = json.dumps({"prompt": "Why?", "document_path": "none.pdf"})
    line = one_line(runner(tmp_path, prompts(tmp_path, row)))
    assert line.startswith("error: p.jsonl, line 1: there is no document none.pdf; name a")
    line = one_line(runner(tmp_path, 'prompts.items=[{prompt: "Why?", document: ""}]'))
    assert "prompts.items[0]: the document is empty; write what it says" in line
    line = one_line(runner(tmp_path, "prompts=recall", "prompts.document=report.pdf"))
    assert (
        "prompts=recall writes its own; set prompts.items=[...] or prompts.path=FILE.jsonl, or drop" in line
    )


def test_a_prompt_longer_than_the_window(tmp_path: Path) -> None:
    done = runner(tmp_path, *TINY, "window.policy=fixed", "window.tokens=20")
    line = one_line(done)
    assert "window.tokens is 20" in line and "window.policy=need" in line
    assert load(tmp_path).jobs["status"].tolist() == ["refused"]


def test_a_context_beyond_the_native_length(tmp_path: Path) -> None:
    line = one_line(runner(tmp_path, *TINY, "window.policy=fixed", "window.tokens=9000"))
    assert "beyond the model's native length" in line and "8192" in line and "9000" in line
    assert "kv_mode=guided" not in line, "the window is too long, not the prompt"
    long = json.dumps({"id": "long", "prompt": "Which?", "document": "word " * 9000})
    line = one_line(runner(tmp_path, prompts(tmp_path, long)))
    assert "beyond the model's native length" in line
    assert "this makes it fit: kv_mode=guided kv_mode.budget=7680, in a window of 8192 tokens" in line


def test_a_job_without_the_memory(tmp_path: Path) -> None:
    line = one_line(runner(tmp_path, *TINY, "hardware.ram=200MiB"))
    assert "missing" in line and "MiB" in line
    tables = load(tmp_path)
    assert tables.jobs["status"].tolist() == ["refused"]
    [plan] = tables.plans.to_dict("records")
    assert plan["status"] == "refused"
    assert plan["missing_bytes"] == plan["ram_bytes"] - plan["available_bytes"] > 0


def test_nothing_is_fetched_for_what_the_formula_refuses(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    environment = os.environ | {"KVSWARM_CACHE": str(cache), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}
    line = one_line(runner(tmp_path, *TINY, "hardware.ram=100MiB", env=environment))
    assert "missing" in line
    assert not list(cache.rglob("*.gguf*"))


def test_a_chat_for_a_base_model(tmp_path: Path, gemma3: Path) -> None:
    chat = json.dumps(
        {"id": "c", "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]}
    )
    assert "base model" in one_line(runner(tmp_path, "model=gemma3_270m", prompts(tmp_path, chat)))


def test_a_grammar_that_does_not_parse(tmp_path: Path) -> None:
    assert "GBNF" in one_line(runner(tmp_path, *TINY, 'sampling.grammar="root ::= ("'))


def test_quantised_v_without_flash_attention(tmp_path: Path) -> None:
    line = one_line(runner(tmp_path, *TINY, "kv_mode=q4_0", "flash_attn=off"))
    assert "needs flash attention" in line and "flash_attn=on" in line


def test_more_workers_than_a_batch_holds(tmp_path: Path) -> None:
    line = one_line(runner(tmp_path, "prompts.items=[Why?]", "swarm_size=60", "n_ubatch=32"))
    assert "swarm_size=60" in line and "set n_ubatch=60" in line
    line = one_line(runner(tmp_path, "prompts.items=[a,b,c]", "swarm_size=128", "in_flight=3"))
    assert "384 sequences, the engine has 256" in line


def test_an_output_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    line = one_line(runner(tmp_path, *TINY, "hydra.run.dir=taken"))
    assert "taken" in line


def test_no_room_on_the_disk(tmp_path: Path) -> None:
    tables = tmp_path / "out" / "tables"
    tables.mkdir(parents=True)
    (tables / "generations.jsonl").symlink_to("/dev/full")
    line = one_line(runner(tmp_path, *TINY, "hydra.run.dir=out"))
    assert "space" in line.lower() or "room" in line.lower()
    (tables / "generations.jsonl").unlink()
    assert load(tmp_path).jobs["status"].tolist() == ["failed"]


@pytest.mark.parametrize(
    ("prompt_tokens", "answer_tokens", "after_s", "rows"), [(6000, 8, 2.0, 0), (200, 4000, 4.0, 3)]
)
def test_ctrl_c(prompt_tokens: int, answer_tokens: int, after_s: float, rows: int, tmp_path: Path) -> None:
    """During prefill nothing is in hand; during decode the answers so far are written, marked."""
    process = subprocess.Popen(
        [sys.executable, "-m", "runner", "swarm_size=3", "prompts.count=1", f"prompts.tokens={prompt_tokens}",
         f"sampling.max_tokens={answer_tokens}", "sampling.ignore_eos=true", "hydra.run.dir=out"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    phase = "prefill" if rows == 0 else "decode"
    journal = tmp_path / "out" / "tables" / "traces.jsonl"
    deadline = time.monotonic() + 500
    while not (journal.exists() and f'"{phase}"' in journal.read_text()):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in said
    tables = load(tmp_path)
    assert tables.jobs["status"].tolist() == ["interrupted"]
    assert tables.generations["status"].tolist() == ["interrupted"] * rows
    assert (tables.generations["generated_tokens"] > 0).all()
    assert tables.votes.empty
    assert (tmp_path / "out" / "tables" / "jobs.parquet").exists()


def test_ctrl_c_ends_a_sweep(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "runner", "-m", "swarm_size=3,4", "prompts.count=1", "prompts.tokens=200",
         "sampling.max_tokens=4000", "sampling.ignore_eos=true"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    journal = tmp_path / "outputs/default/swarm_size.workers=3,prompts.count=1"
    deadline = time.monotonic() + 500
    while not any('"decode"' in path.read_text() for path in tmp_path.rglob("traces.jsonl")):
        assert process.poll() is None and time.monotonic() < deadline, journal
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == 130
    assert load(tmp_path).jobs["status"].tolist() == ["interrupted"]
