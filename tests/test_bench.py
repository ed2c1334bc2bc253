from __future__ import annotations

import json
import os
from pathlib import Path

from commands import one_line, runner

SMALL = ("rounds=1", "swarm_size=3", "prompts.tokens=200", "sampling.max_tokens=12")


def test_it_measures_and_remembers(tmp_path: Path, smollm2: Path) -> None:
    """The ratios are written and printed, and flash_attn=auto goes by them afterwards."""
    environment = os.environ | {"KVSWARM_CACHE": str(tmp_path / "cache")}
    own = f"model.path={smollm2}"
    done = runner(tmp_path, own, *SMALL, module="runner.bench", env=environment)
    assert done.returncode == 0, done.stderr
    [written] = tmp_path.glob("outputs/bench/*/bench.json")
    ratios = json.loads(written.read_text())
    assert set(ratios) == {
        "shared_vs_isolated", "decode_ratio", "fa_total_ratio", "fa_prefill_ratio", "fa_decode_ratio",
        "tap_ratio_1", "tap_ratio_8",
    }  # fmt: skip
    assert ratios["shared_vs_isolated"] > 1 and all(ratio > 0 for ratio in ratios.values())
    assert "shared_vs_isolated" in done.stdout
    remembered = json.loads((tmp_path / "cache" / "flash_attn.json").read_text())
    assert list(remembered.values()) == [ratios["fa_total_ratio"]]


def test_rounds_must_be_a_number(tmp_path: Path) -> None:
    assert "rounds=0: must be a whole number" in one_line(runner(tmp_path, "rounds=0", module="runner.bench"))
