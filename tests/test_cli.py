from __future__ import annotations

import pytest

from runner.cli import folder_name, rewrite
from runner.errors import ConfigError


@pytest.mark.parametrize(
    ("typed", "taken"),
    [
        ("swarm_size=5", "swarm_size.workers=5"),
        ("swarm_size=1,3,5", "swarm_size.workers=1,3,5"),
        ("swarm_size=1, 3", "swarm_size.workers=1, 3"),
        ("swarm_size=range(1,6)", "swarm_size.workers=range(1,6)"),
        ("swarm_size=-1", "swarm_size.workers=-1"),
        ("swarm_size=nine", "swarm_size=nine"),
        ("swarm_size=trio,nine", "swarm_size=trio,nine"),
        ("swarm_size.workers=4", "swarm_size.workers=4"),
        ("experiment=smoke", "+experiment=smoke"),
        ("+experiment=smoke", "+experiment=smoke"),
        ("seed=5", "seed=5"),
        ("--cfg", "--cfg"),
    ],
)
def test_what_a_person_types(typed: str, taken: str) -> None:
    assert rewrite([typed]) == [taken]


def test_a_file_alone_is_its_own_model() -> None:
    typed = ["seed=1", "model.path=a.gguf", "--cfg", "job"]
    assert rewrite(typed) == ["seed=1", "model.path=a.gguf", "model=custom", "--cfg", "job"]
    assert rewrite(["model=qwen35b", "model.path=a.gguf"]) == ["model=qwen35b", "model.path=a.gguf"]


def test_a_tilde_is_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    typed = ["model.path=~/a.gguf,b.gguf", "prompts.path=~/p.jsonl", "model=custom", "name=~x"]
    taken = ["model.path=/home/me/a.gguf,b.gguf", "prompts.path=/home/me/p.jsonl", "model=custom", "name=~x"]
    assert rewrite(typed) == taken


def test_mixed_sizes_are_refused() -> None:
    with pytest.raises(ConfigError, match="mixes numbers and named options"):
        rewrite(["swarm_size=3,nine"])


def test_folder_names_are_fit_for_a_file_system() -> None:
    assert folder_name("kv_mode=q8_0,swarm_size.workers=5") == "kv_mode=q8_0,swarm_size.workers=5"
    odd = [
        folder_name(text)
        for text in ("model.path=/a/b.gguf", "model.path=/a_b.gguf", "x=" + "y" * 500, "é=*", "")
    ]
    assert len(set(odd)) == len(odd)
    assert all("/" not in name and 0 < len(name) <= 120 and not name.startswith(".") for name in odd)
