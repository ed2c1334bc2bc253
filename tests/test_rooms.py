"""The rooms of docs/architecture.md hold: who imports whom."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def imports(path: Path) -> Iterator[str]:
    """Modules imported at run time; what only a type checker sees does not count."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize(
    ("room", "kept_out"),
    [
        ("kvcache", "runner"),
        ("kvcache", "llama_cpp"),
        ("runner/planning", "runner.engine"),
        ("runner/voting", "runner.engine"),
        ("runner/tables", "runner.engine"),
        ("runner/report", "runner.engine"),
        ("runner/context", "runner.engine"),
        ("runner/models", "runner.planning"),
        ("runner/retrieval", "runner.engine"),
    ],
)
def test_a_room_keeps_out(room: str, kept_out: str) -> None:
    files = list((ROOT / room).rglob("*.py"))
    assert files
    wrong = [(str(f), name) for f in files for name in imports(f) if f"{name}.".startswith(f"{kept_out}.")]
    assert wrong == []


def test_one_door_to_llama_cpp() -> None:
    users = {
        f.name for f in (ROOT / "runner").rglob("*.py") if any(n.startswith("llama_cpp") for n in imports(f))
    }
    assert users == {"bindings.py"}
