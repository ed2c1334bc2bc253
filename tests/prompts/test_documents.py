"""Documents out of files and folders, by the path in a prompt or in the config."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from pdfs import encrypted, pdf

from runner.config import PromptsConfig
from runner.errors import ConfigError, PromptError
from runner.prompts import Prompt, least_tokens, load_passages, load_prompts
from runner.prompts.documents import read_document

PAGE = """<!doctype html><html><head><title>Salt</title><style>p {color: red}</style></head><body>
<h1>The salt road</h1><script>alert("no")</script>
<p>It is <b>40</b> miles long &amp; <a href="https://example.org/far">old</a>, file_name*.</p>
<img src="data:image/png;base64,AAAA" alt="A map"><h2>Stops</h2><ul><li>Orla</li><li>Veyra</li></ul>
<table><tr><th>stop</th><th>bales</th></tr><tr><td>Orla</td><td>17</td></tr></table></body></html>"""


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.markdown", "a.RST", "a", "a.log"])
def test_text_is_taken_as_it_stands(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, name, b"\xef\xbb\xbf\r\n# Caf\xc3\xa9\r\n\r\nOne *two*.\n\n")
    assert read_document(path) == "# Café\n\nOne *two*."


def test_html_becomes_markdown(tmp_path: Path) -> None:
    text = read_document(written(tmp_path, "a.html", PAGE))
    lines = [line for line in text.splitlines() if line]
    assert lines[:4] == ["Salt", "# The salt road", "It is **40** miles long & old, file_name*.", "A map"]
    assert lines[4:7] == ["## Stops", "- Orla", "- Veyra"]
    assert "| Orla | 17 |" in text
    assert not any(part in text for part in ("alert", "color", "base64", "example.org", "\n\n\n"))


def test_html_in_the_encoding_that_it_names(tmp_path: Path) -> None:
    page = '<meta http-equiv="Content-Type" content="text/html; charset=iso-8859-1"><p>Café</p>'
    assert read_document(written(tmp_path, "a.htm", page.encode("latin-1"))) == "Café"
    for wrong in ("charset=no-such", "charset=utf-8", "charset=utf-16", "nothing"):
        page = f"<meta content='{wrong}'><p>Café</p>"
        with pytest.raises(PromptError, match=r"a\.htm is not UTF-8 text \(byte \d+\)"):
            read_document(written(tmp_path, "a.htm", page.encode("latin-1")))


def test_pages_of_a_pdf_have_blank_lines_between_them(tmp_path: Path) -> None:
    data = pdf("The code is 4821.", "", "The end.")
    assert read_document(written(tmp_path, "a.PDF", data)) == "The code is 4821.\n\nThe end."
    # With an empty password any viewer opens it.
    assert read_document(written(tmp_path, "b.pdf", encrypted(data, ""))).startswith("The code is 4821.")


def test_a_folder_is_its_documents_in_the_order_of_their_paths(tmp_path: Path) -> None:
    written(tmp_path, "docs/b.md", "Second.\n")
    written(tmp_path, "docs/a/z.txt", "First.")
    written(tmp_path, "docs/c.html", "<h1>Third</h1>")
    written(tmp_path, "docs/d.pdf", pdf("Fourth."))
    for other in (".hidden.md", ".git/config.md", "photo.png", "LICENSE"):
        written(tmp_path, f"docs/{other}", b"\x89PNG\0")
    written(tmp_path, "docs/blank.txt", " \n")
    assert read_document(tmp_path / "docs") == (
        "# a/z.txt\n\nFirst.\n\n# b.md\n\nSecond.\n\n# c.html\n\n# Third\n\n# d.pdf\n\nFourth."
    )


def test_a_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, "docs/a.md", "A story.")
    rows = [json.dumps({"prompt": f"{n}?", "document_path": "docs/a.md"}) for n in range(3)]
    rows.append(json.dumps({"prompt": "All?", "document_path": "docs"}))
    config = PromptsConfig(path=str(written(tmp_path, "p.jsonl", "\n".join(rows))))
    read, bytes_of = [], Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path.name) or bytes_of(path))
    least_tokens(config)
    prompts = load_prompts(config, len)
    load_passages(config, len)
    assert [prompt.document for prompt in prompts] == ["A story."] * 3 + ["# a.md\n\nA story."]
    assert len({prompt.document_digest for prompt in prompts[:3]}) == 1
    assert read == ["a.md"]
    os.utime(written(tmp_path, "docs/a.md", "A tale."), ns=(1, 1))
    assert load_prompts(config, len)[0].document == "A tale."


def test_where_a_relative_path_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the prompts' file, or for what stands on the command line in the working directory; ~ is home."""
    written(tmp_path, "sets/a.txt", "Beside the prompts.")
    written(tmp_path, "a.txt", "In the working directory.")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "sets"))
    row = {"prompt": "?", "document_path": "a.txt"}
    written(tmp_path, "sets/p.jsonl", json.dumps(row))
    [filed] = load_prompts(PromptsConfig(path="sets/p.jsonl"), len)
    [inline] = load_prompts(PromptsConfig(items=[row]), len)
    [home] = load_prompts(PromptsConfig(items=[row | {"document_path": "~/a.txt"}]), len)
    assert [filed.document, inline.document] == ["Beside the prompts.", "In the working directory."]
    assert home.document == "Beside the prompts."


def test_one_document_for_all_prompts_without_their_own(tmp_path: Path) -> None:
    report = str(written(tmp_path, "report.pdf", pdf("The code is 4821.")))
    rows = ["One?", {"prompt": "Two?", "document": "Mine."}, {"turns": ["Three?"]}]
    one, two, three = load_prompts(PromptsConfig(items=rows, document=report), len)
    assert [one.document, two.document, three.document] == ["The code is 4821.", "Mine.", "The code is 4821."]
    lines = [{"prompt": "One?"}, {"id": "t", "kind": "score", "text": "A text."}]
    path = written(tmp_path, "p.jsonl", "\n".join(map(json.dumps, lines)))
    filed = PromptsConfig(path=str(path), document=report)
    assert [prompt.document for prompt in load_prompts(filed, len)] == ["The code is 4821."]
    assert [passage.text for passage in load_passages(filed, len)] == ["A text."]


@pytest.mark.parametrize("name", ["needle", "recall", "texts"])
def test_generated_prompts_take_no_document(name: str, tmp_path: Path) -> None:
    report = str(written(tmp_path, "a.txt", "A story."))
    with pytest.raises(PromptError, match=rf"prompts\.document .* prompts={name} writes its own; set"):
        load_prompts(PromptsConfig(name=name, document=report), len)
    with pytest.raises(PromptError, match="prompts=inline has no prompts"):
        load_prompts(PromptsConfig(name="inline", document=report), len)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"document": "A.", "document_path": "a.txt"}, "line 1: give one of `document` and `document_path`"),
        ({"document": ""}, "line 1: the document is empty; write"),
        ({"document": " \n"}, "line 1: the document is empty; write"),
        ({"document_path": ""}, "line 1: document_path='' is no path"),
        ({"document_path": 3}, "line 1: document_path=3 is no path"),
        ({"document_path": "none.txt"}, "none.txt; name a text, Markdown, HTML or PDF file"),
        ({"document_path": "a\0b"}, "names no file (embedded null byte)"),
        ({"document_path": "~no-such-user/a"}, "names no file"),
        ({"document_path": "a" * 300}, "cannot be read: File name too long"),
        ({"documnet_path": "a.txt"}, "unknown key 'documnet_path'; did you mean 'document_path'?"),
        ({"kind": "score", "text": "A.", "document_path": "a"}, "'document_path' does not go with kind=score"),
    ],
)  # fmt: skip
def test_a_row_that_names_no_document(row: dict[str, object], said: str, tmp_path: Path) -> None:
    row = row if "kind" in row else {"prompt": "?"} | row
    path = written(tmp_path, "p.jsonl", json.dumps(row))
    with pytest.raises(PromptError) as refused:
        load_prompts(PromptsConfig(path=str(path)), len)
    assert said in str(refused.value) and "p.jsonl, line 1: " in str(refused.value)


def test_what_is_no_document(tmp_path: Path) -> None:
    whole = pdf("The code is 4821.")
    for name, content, said in [
        ("a.txt", b"caf\xe9", r"is not UTF-8 text \(byte 3\); save it as UTF-8"),
        ("a.docx", b"PK\x03\x04\0", r"looks binary \(byte 4 is NUL\); give text"),
        ("a.html", "<p>A\0</p>", r"looks binary"),
        ("a.md", " \n\t", r"is empty; give"),
        ("a.html", "<script>1</script>", r"is empty; give"),
        ("a.html", "<div>" * 5000 + "A", r"is nested too deeply"),
        ("a.pdf", b"", r"is no PDF that can be read \(.*\); save it anew"),
        ("b.pdf", b"Not a PDF.", r"is no PDF that can be read"),
        ("c.pdf", whole[:40], r"is no PDF that can be read"),
        ("d.pdf", encrypted(whole, "secret"), r"is encrypted; save a copy of it without a password"),
        ("e.pdf", pdf("", ""), r"has no text on its pages, .*; run OCR"),
    ]:
        with pytest.raises(PromptError, match=said) as refused:
            read_document(written(tmp_path, name, content))
        assert str(refused.value).startswith(str(tmp_path / name))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PromptError, match="pipe is neither a file nor a folder"):
        read_document(tmp_path / "pipe")


def test_a_folder_without_documents(tmp_path: Path) -> None:
    for content in (None, ("a.png", b"\x89PNG\0"), ("a.txt", "  "), (".a.txt", "Hidden.")):
        if content:
            written(tmp_path, *content)
        with pytest.raises(PromptError, match=r"holds no documents with text in them; name a folder of"):
            read_document(tmp_path)
    written(tmp_path, "deep/scan.pdf", pdf(""))
    with pytest.raises(PromptError, match=r"deep/scan\.pdf has no text"):
        read_document(tmp_path)


@pytest.mark.parametrize(("module", "name"), [("pypdf", "a.pdf"), ("markdownify", "a.html")])
def test_without_the_extra(module: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    path = str(written(tmp_path, name, pdf("A.")))
    with pytest.raises(
        ConfigError, match=r"files need the documents extra; pip install 'kvswarm\[documents\]'"
    ):
        load_prompts(PromptsConfig(items=["?"], document=path), len)
    assert read_document(written(tmp_path, "a.md", "Text needs none.")) == "Text needs none."


def test_a_conversation_and_its_document_do_not_depend_on_where_it_came_from(tmp_path: Path) -> None:
    """The id of a conversation is made of all its fields: a path must not be one of them."""
    path = str(written(tmp_path, "a.txt", "A story."))
    [by_path] = load_prompts(PromptsConfig(items=[{"turns": ["?"], "document_path": path}]), len)
    [by_text] = load_prompts(PromptsConfig(items=[{"turns": ["?"], "document": "A story."}]), len)
    assert isinstance(by_path, Prompt) and by_path == by_text
