from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from runner.kv_mode import KvModeConfig
from runner.planning.flash import Shape, choose, read, remember

SHAPE = Shape("cpu", 2, "smollm2", "f16", "f16", workers=8, prompt_tokens=2000)
F16, K8V4 = KvModeConfig(), KvModeConfig(name="k8v4", k="q8_0", v="q4_0")


def test_on_unless_told_or_measured(tmp_path: Path) -> None:
    measured = tmp_path / "new" / "flash.json"
    assert choose("auto", F16, SHAPE, read(measured)) and choose("on", F16, SHAPE, {})
    assert not choose("off", F16, SHAPE, {})
    remember(measured, SHAPE, 1.3)
    slower = read(measured)
    assert not choose("auto", F16, SHAPE, slower) and choose("on", F16, SHAPE, slower)
    remember(measured, SHAPE, 0.9)
    assert choose("auto", F16, SHAPE, read(measured))


def test_a_measurement_speaks_for_its_shape_alone() -> None:
    slower = {SHAPE.key: 1.3}
    assert not choose("auto", F16, replace(SHAPE, prompt_tokens=1100), slower)
    for other in ({"workers": 5}, {"prompt_tokens": 9000}, {"model": "x"}, {"cpu": "y"}, {"n_threads": 1}):
        assert choose("auto", F16, replace(SHAPE, **other), slower)  # type: ignore[arg-type]


def test_a_quantised_v_has_it_whatever_was_measured() -> None:
    assert choose("auto", K8V4, SHAPE, {SHAPE.key: 1.3})


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": "b"}'])
def test_a_damaged_measurement_is_no_measurement(text: str, tmp_path: Path) -> None:
    (tmp_path / "flash.json").write_text(text)
    assert read(tmp_path / "flash.json") == {}
