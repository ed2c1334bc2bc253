from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import psutil
import pynvml
import pytest

from runner.config import HardwareConfig, conf_dir, parse
from runner.errors import PlanRefusedError
from runner.planning import cgroup, hardware
from runner.planning.cgroup import Limits
from runner.planning.hardware import GIB, margin_bytes, physical_cores, probe, reserve_bytes


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def limits(root: Path, membership: str) -> Limits:
    return cgroup.limits(root / "cg", tree(root, {"self": membership}) / "self")


def test_cgroup_v2_takes_the_smallest_limit_up_the_tree(tmp_path: Path) -> None:
    tree(tmp_path / "cg", {
        "cgroup.controllers": "cpu memory",
        "job/task/memory.max": "max",
        "job/task/memory.current": "100",
        "job/task/cpu.max": "max 100000",
        "job/memory.max": "8000",
        "job/memory.current": "5000",
        "job/memory.stat": "anon 1000\nactive_file 500\ninactive_file 1500",
        "job/cpu.max": "250000 100000",
    })  # fmt: skip
    assert limits(tmp_path, "0::/job/task") == Limits(8000, 8000 - (5000 - 2000), 2.5)


def test_cgroup_v2_in_a_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    tree(tmp_path / "cg", {"cgroup.controllers": "", "memory.max": "4000", "memory.current": "1000"})
    assert limits(tmp_path, "0::/kubepods/pod7/abc").memory_left_bytes == 3000
    assert limits(tmp_path, "0::/../../abc").memory_bytes == 4000


def test_cgroup_v1(tmp_path: Path) -> None:
    tree(tmp_path / "cg", {
        "memory/memory.limit_in_bytes": "9223372036854771712",
        "memory/docker/x/memory.limit_in_bytes": "6000",
        "memory/docker/x/memory.usage_in_bytes": "4000",
        "memory/docker/x/memory.stat": "inactive_file 1\ntotal_inactive_file 900\ntotal_active_file 100",
        "cpu,cpuacct/docker/x/cpu.cfs_quota_us": "150000",
        "cpu,cpuacct/docker/x/cpu.cfs_period_us": "100000",
    })  # fmt: skip
    assert limits(tmp_path, "4:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n0::/") == Limits(6000, 3000, 1.5)


def test_no_cgroups(tmp_path: Path) -> None:
    assert cgroup.limits(tmp_path / "none", tmp_path / "none") == Limits()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 64 GiB, 40 of them free, no container and no card."""
    memory = SimpleNamespace(total=64 * GIB, available=40 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(cgroup, "limits", Limits)
    monkeypatch.setattr(hardware, "_cards", lambda can_offload: ((), ()))


def test_reserve_and_margin() -> None:
    assert [reserve_bytes(n * GIB) / GIB for n in (4, 8, 64, 512)] == [2, 3, pytest.approx(6.4), 16]
    assert reserve_bytes(8 * GIB, declared=0) == 0
    assert [margin_bytes(n * GIB) / GIB for n in (8, 24)] == [2, pytest.approx(2.16)]


@pytest.mark.usefixtures("machine")
def test_what_is_available_is_not_reserved_twice() -> None:
    assert probe(HardwareConfig(), can_offload=False).ram_budget == 40 * GIB
    assert probe(HardwareConfig(reserve=30 * GIB), can_offload=False).ram_budget == 34 * GIB


@pytest.mark.usefixtures("machine")
def test_container_limits_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "limits", lambda: Limits(10 * GIB, 9 * GIB, 1.0))
    found = probe(HardwareConfig(), can_offload=False)
    assert (found.ram_total, found.ram_available, found.ram_budget) == (10 * GIB, 9 * GIB, 7 * GIB)
    assert found.threads == 1


@pytest.mark.usefixtures("machine")
def test_a_smaller_declared_budget_caps() -> None:
    found = probe(HardwareConfig(name="cpu_8gb", ram=8 * GIB, vram=0), can_offload=False)
    assert (found.ram_budget, found.runnable) == (5 * GIB, True)
    found.check()


@pytest.mark.usefixtures("machine")
def test_a_larger_declared_budget_can_be_planned_but_not_run() -> None:
    found = probe(HardwareConfig(name="big", ram=512 * GIB, vram=24 * GIB), can_offload=False)
    assert (found.ram_budget, found.vram_budget) == (496 * GIB, 24 * GIB - margin_bytes(24 * GIB))
    assert not found.runnable
    with pytest.raises(PlanRefusedError, match=r"declares 512.00 GiB of RAM, this machine has 64.00 GiB"):
        found.check()


class _Cards:
    """A driver with two cards, 24 and 16 GiB."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        sizes = [(24 * GIB, 20 * GIB), (16 * GIB, 16 * GIB)]
        monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
        monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: len(sizes))
        monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda index: f"card {index}")
        monkeypatch.setattr(
            pynvml, "nvmlDeviceGetMemoryInfo", lambda i: SimpleNamespace(total=sizes[i][0], free=sizes[i][1])
        )


def test_every_card_counts_where_the_engine_can_offload(monkeypatch: pytest.MonkeyPatch) -> None:
    _Cards(monkeypatch)
    found = probe(HardwareConfig(), can_offload=True)
    assert [card.name for card in found.gpus] == ["card 0", "card 1"]
    assert found.vram_budget == 20 * GIB - margin_bytes(24 * GIB) + 14 * GIB
    capped = probe(HardwareConfig(name="small", vram=8 * GIB), can_offload=True)
    assert (capped.vram_budget, capped.runnable) == (6 * GIB, True)


def test_a_card_this_build_cannot_use_says_how_to_rebuild(monkeypatch: pytest.MonkeyPatch) -> None:
    _Cards(monkeypatch)
    found = probe(HardwareConfig(), can_offload=False)
    assert (found.gpus, found.vram_budget) == ((), 0)
    (note,) = found.notes
    assert "card 0 (24.00 GiB)" in note
    assert 'CMAKE_ARGS="-DGGML_CUDA=on" pip install --force-reinstall' in note


def test_no_driver_is_fine() -> None:
    assert probe(HardwareConfig(), can_offload=False).vram_budget == 0


def test_hyperthreads_share_a_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for cpu, (package, core) in enumerate([(0, 0), (0, 0), (0, 1), (1, 0)]):
        tree(tmp_path / f"cpu{cpu}/topology", {"physical_package_id": str(package), "core_id": str(core)})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    assert physical_cores(tmp_path) == 3
    assert physical_cores(tmp_path, cpus=1.5) == 1
    assert physical_cores(tmp_path, cpus=0.5) == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert physical_cores(tmp_path) == 1
    assert physical_cores(tmp_path / "none") == 2


def test_shipped_options_carry_their_file_name() -> None:
    from omegaconf import OmegaConf

    for path in (conf_dir() / "hardware").glob("*.yaml"):
        config = parse(HardwareConfig, OmegaConf.to_container(OmegaConf.load(path)))  # type: ignore[arg-type]
        assert config.name == path.stem
