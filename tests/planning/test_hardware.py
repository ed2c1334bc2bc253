from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pynvml
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from runner.config import HardwareConfig
from runner.engine import bindings
from runner.errors import PlanRefusedError
from runner.parsing import conf_dir, parse
from runner.planning.hardware import cgroup, gpus
from runner.planning.hardware.budget import GIB, Hardware, margin_bytes, probe, reserve_bytes, with_held
from runner.planning.hardware.build import offload_backends
from runner.planning.hardware.cgroup import Limits
from runner.planning.hardware.gpus import Gpu
from runner.planning.hardware.machine import Machine, look, physical_cores, reclaimable_bytes


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


PLAIN = Machine(total=64 * GIB, available=40 * GIB, threads=8)
FLOOR = 64 * GIB // 10
CARDS = (Gpu("card 0", 24 * GIB, 20 * GIB), Gpu("card 1", 16 * GIB, 16 * GIB))
WITH_CARDS = replace(PLAIN, cards=CARDS)
SPARK = Machine(120 * GIB, 100 * GIB, (Gpu("NVIDIA GB10", 120 * GIB, 100 * GIB),), unified=True)


def of(machine: Machine, *, can_offload: bool = False, **declared: object) -> Hardware:
    return probe(HardwareConfig(**declared), can_offload=can_offload, machine=machine)  # type: ignore[arg-type]


def option(name: str) -> HardwareConfig:
    loaded = OmegaConf.to_container(OmegaConf.load(conf_dir() / "hardware" / f"{name}.yaml"))
    config: HardwareConfig = parse(HardwareConfig, loaded)  # type: ignore[arg-type]
    return config


OPTIONS = sorted(path.stem for path in (conf_dir() / "hardware").glob("*.yaml"))


def test_floor_and_margin() -> None:
    assert [reserve_bytes(n * GIB) / GIB for n in (4, 8, 64, 512)] == [2, 3, pytest.approx(6.4), 16]
    assert reserve_bytes(8 * GIB, declared=0) == 0
    assert [margin_bytes(n * GIB) / GIB for n in (2, 8, 24)] == [1, 2, pytest.approx(2.16)]


def test_the_floor_comes_off_what_is_available() -> None:
    found = of(PLAIN)
    assert (found.ram_total, found.ram_available, found.ram_budget) == (64 * GIB, 40 * GIB, 40 * GIB - FLOOR)
    assert (found.vram_budget, found.cards, found.unified, found.threads) == (0, 0, False, 8)
    assert of(PLAIN, reserve=30 * GIB).ram_budget == 10 * GIB
    assert of(PLAIN, reserve=50 * GIB).ram_budget == 0


def test_the_floor_is_at_most_half_of_what_is_available() -> None:
    assert of(replace(PLAIN, available=4 * GIB)).ram_budget == 2 * GIB
    assert of(Machine(total=1 * GIB, available=1 * GIB)).ram_budget == GIB // 2


def test_a_smaller_declared_machine_caps() -> None:
    found = of(PLAIN, name="cpu_8gb", ram=8 * GIB, vram=0)
    assert (found.ram_total, found.ram_budget, found.runnable) == (8 * GIB, 5 * GIB, True)
    found.check()
    assert of(replace(PLAIN, available=7 * GIB), ram=8 * GIB).ram_budget == 7 * GIB // 2
    assert of(WITH_CARDS, can_offload=True, ram=20 * GIB, vram=12 * GIB).vram_budget == 10 * GIB


def test_a_larger_declared_machine_can_be_planned_but_not_run() -> None:
    found = of(PLAIN, name="big", ram=512 * GIB, vram=24 * GIB)
    assert (found.ram_budget, found.vram_budget) == (496 * GIB, 24 * GIB - margin_bytes(24 * GIB))
    assert (found.ram_available, found.cards, found.runnable) == (512 * GIB, 1, False)
    with pytest.raises(PlanRefusedError, match=r"declares 512.00 GiB of RAM, this machine has 64.00 GiB"):
        found.check()
    with pytest.raises(PlanRefusedError, match=r"declares 24.00 GiB of VRAM, this build can use 0.0 MiB"):
        found.check()


def test_what_is_declared_and_not_here_does_not_depend_on_what_is_free_here() -> None:
    busy = replace(PLAIN, available=1 * GIB)
    assert of(busy, ram=16 * GIB, vram=8 * GIB) == of(PLAIN, ram=16 * GIB, vram=8 * GIB)
    alone = of(Machine(), name="cpu_16gb", ram=16 * GIB, vram=0)
    assert (alone.ram_budget, alone.runnable) == (13 * GIB, False)


def test_memory_that_firmware_keeps_is_not_missing() -> None:
    sold = Machine(int(15.5 * GIB), int(14 * GIB), (Gpu("RTX 4060", 8188 * 2**20, 8000 * 2**20),))
    found = of(sold, can_offload=True, ram=16 * GIB, vram=8 * GIB)
    assert found.runnable
    assert (found.ram_total, found.ram_budget) == (int(15.5 * GIB), 11 * GIB)
    assert found.vram_budget == 8000 * 2**20 - 2 * GIB
    assert not of(sold, ram=17 * GIB).runnable


def test_every_card_counts_where_the_build_can_offload() -> None:
    found = of(WITH_CARDS, can_offload=True)
    assert (found.gpus, found.cards) == (CARDS, 2)
    assert found.vram_budget == 20 * GIB - margin_bytes(24 * GIB) + 14 * GIB
    assert found.ram_budget == 40 * GIB - FLOOR
    full = replace(WITH_CARDS, cards=(Gpu("card 0", 24 * GIB, GIB), CARDS[1]))
    assert of(full, can_offload=True).vram_budget == 14 * GIB
    assert of(WITH_CARDS, can_offload=True, vram=0).gpus == ()


def test_the_margin_is_taken_of_each_declared_card() -> None:
    one = of(PLAIN, vram=48 * GIB).vram_budget
    two = of(PLAIN, vram=48 * GIB, cards=2)
    assert (one, two.vram_budget) == (
        48 * GIB - margin_bytes(48 * GIB),
        48 * GIB - 2 * margin_bytes(24 * GIB),
    )
    assert two.cards == 2


def test_a_gpu_this_build_cannot_use_says_how_to_rebuild() -> None:
    found = of(WITH_CARDS)
    assert (found.gpus, found.vram_budget) == ((), 0)
    (note,) = found.notes
    assert "card 0 (24.00 GiB)" in note
    assert 'CMAKE_ARGS="-DGGML_CUDA=on" pip install --force-reinstall' in note
    assert of(WITH_CARDS, vram=0).notes == ()
    mac = replace(SPARK, cards=(Gpu("Apple GPU", 120 * GIB, 100 * GIB, "METAL"),))
    assert "-DGGML_METAL=on" in of(mac).notes[0]


def test_a_build_that_can_offload_without_a_gpu_says_what_was_planned() -> None:
    assert "planned for RAM alone" in of(PLAIN, can_offload=True).notes[0]
    assert of(PLAIN).notes == of(PLAIN, can_offload=True, vram=0).notes == ()


def test_unified_memory_is_one_pool() -> None:
    found = of(SPARK, can_offload=True)
    assert found.unified
    assert found.ram_budget == found.vram_budget == 96 * GIB  # 80 %, less than what 12 GiB of floor leave
    assert (found.cards, found.gpus[0].name) == (1, "NVIDIA GB10")
    assert of(replace(SPARK, available=50 * GIB), can_offload=True).vram_budget == 50 * GIB
    assert of(SPARK, can_offload=True, reserve=40 * GIB).ram_budget == 80 * GIB
    small = Machine(12 * GIB, 12 * GIB, (Gpu("Apple GPU", 12 * GIB, 12 * GIB),), unified=True)
    assert of(small, can_offload=True).vram_budget == 9 * GIB  # 3 GiB of floor, more than 20 %


def test_unified_memory_is_plain_ram_without_a_build_or_a_wish_to_offload() -> None:
    for plain in (of(SPARK), of(SPARK, can_offload=True, vram=0), of(SPARK, can_offload=True, unified=False)):
        assert (plain.unified, plain.vram_budget, plain.ram_budget) == (False, 0, 88 * GIB)


def test_a_declared_unified_machine() -> None:
    here = of(SPARK, can_offload=True, ram=16 * GIB, unified=True)
    assert here.runnable
    assert (here.ram_budget, here.vram_budget, here.ram_total) == (int(12.8 * GIB), int(12.8 * GIB), 16 * GIB)
    assert of(SPARK, can_offload=True, ram=16 * GIB) == replace(here, notes=())
    for elsewhere, why in (
        (
            of(PLAIN, can_offload=True, ram=16 * GIB, unified=True),
            "16.00 GiB of unified memory, this machine has",
        ),
        (of(SPARK, ram=16 * GIB, unified=True), "unified memory, this build is for CPU only"),
        (of(SPARK, can_offload=True, ram=200 * GIB, unified=True), "200.00 GiB of RAM, this machine has 120"),
    ):
        assert elsewhere.unified
        assert elsewhere.ram_budget == elsewhere.vram_budget == min(elsewhere.ram_total * 4 // 5, 184 * GIB)
        assert elsewhere.cards == 1
        with pytest.raises(PlanRefusedError, match=why):
            elsewhere.check()


def test_declared_cards_are_not_on_a_unified_machine() -> None:
    found = of(SPARK, can_offload=True, vram=12 * GIB, ram=20 * GIB)
    assert (found.unified, found.ram_budget, found.vram_budget) == (False, 17 * GIB, 10 * GIB)
    with pytest.raises(PlanRefusedError, match=r"12.00 GiB of VRAM, this machine's GPU shares its RAM"):
        found.check()


def test_a_gpu_that_may_map_less_than_the_pool_bounds_it() -> None:
    halo = Machine(
        124 * GIB, 118 * GIB, (Gpu("AMD GPU 0x1586", 62 * GIB, 118 * GIB, "VULKAN"),), unified=True
    )
    found = of(halo, can_offload=True)
    assert found.vram_budget == 62 * GIB
    assert "may map 62.00 GiB of 124.00 GiB (ttm.pages_limit" in found.notes[0]
    assert of(halo, can_offload=True, ram=32 * GIB).notes == ()


def test_what_a_process_holds_comes_back_to_it() -> None:
    plain = of(PLAIN)
    held = with_held(plain, ram_bytes=5 * GIB)
    assert held.ram_budget == plain.ram_budget + 5 * GIB == of(replace(PLAIN, available=45 * GIB)).ram_budget
    assert with_held(plain, ram_bytes=90 * GIB).ram_budget == 64 * GIB - FLOOR
    assert with_held(plain, vram_bytes=GIB).vram_budget == 0
    cards = with_held(of(WITH_CARDS, can_offload=True), vram_bytes=3 * GIB)
    assert cards.vram_budget == 23 * GIB - margin_bytes(24 * GIB) + 14 * GIB
    assert with_held(cards, vram_bytes=9 * GIB).vram_budget == 40 * GIB - margin_bytes(24 * GIB) - 2 * GIB
    pool = with_held(
        of(replace(SPARK, available=60 * GIB), can_offload=True), ram_bytes=GIB, vram_bytes=9 * GIB
    )
    assert pool.ram_budget == pool.vram_budget == 70 * GIB
    assert with_held(pool, vram_bytes=90 * GIB).vram_budget == 96 * GIB


@pytest.mark.parametrize("available", [GIB, 2 * GIB, 5 * GIB])
def test_what_comes_back_is_what_would_be_free(available: int) -> None:
    """Also where the floor is half of what is available, or the card's margin is in use."""
    before = Machine(8 * GIB, available, (Gpu("card", 8 * GIB, available),))
    after = Machine(8 * GIB, available + 2 * GIB, (Gpu("card", 8 * GIB, available + 2 * GIB),))
    given = with_held(of(before, can_offload=True), ram_bytes=2 * GIB, vram_bytes=2 * GIB)
    wanted = of(after, can_offload=True)
    assert (given.ram_budget, given.vram_budget) == (wanted.ram_budget, wanted.vram_budget)


def test_what_comes_back_stays_below_what_is_declared() -> None:
    capped = of(WITH_CARDS, can_offload=True, ram=16 * GIB, vram=8 * GIB)
    given = with_held(capped, ram_bytes=8 * GIB, vram_bytes=8 * GIB)
    assert (given.ram_budget, given.vram_budget) == (13 * GIB, 6 * GIB)
    mac = with_held(of(SPARK, can_offload=True, ram=16 * GIB), ram_bytes=20 * GIB)
    assert mac.ram_budget == int(12.8 * GIB)
    all_of_it = of(replace(PLAIN, available=64 * GIB), reserve=0)
    assert with_held(all_of_it, ram_bytes=GIB).ram_budget == 64 * GIB


def test_ten_declared_machines_cost_less_than_a_millisecond() -> None:
    configs = [option(name) for name in OPTIONS if name != "auto"][:10]
    best = 1.0
    for _ in range(5):
        start = time.perf_counter()
        for config in configs:
            probe(config, can_offload=True, machine=WITH_CARDS)
        best = min(best, time.perf_counter() - start)
    assert best < 1e-3


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A Linux machine with 64 GiB, 40 of them free, no container, no driver and no GPU."""

    def no_driver() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    memory = SimpleNamespace(total=64 * GIB, available=40 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(cgroup, "limits", Limits)
    monkeypatch.setattr(pynvml, "nvmlInit", no_driver)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(gpus, "DRM", tmp_path / "drm")
    monkeypatch.setattr(gpus, "DEVICE_TREE", tmp_path / "compatible")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("bare")
def test_container_limits_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert look() == replace(PLAIN, threads=physical_cores())
    monkeypatch.setattr(cgroup, "limits", lambda: Limits(10 * GIB, 9 * GIB, 1.0))
    found = probe(HardwareConfig(), can_offload=False)
    assert (found.ram_total, found.ram_available, found.ram_budget) == (10 * GIB, 9 * GIB, 6 * GIB)
    assert found.threads == 1


def driver(monkeypatch: pytest.MonkeyPatch, cards: dict[str, tuple[int, int] | int]) -> None:
    """NVML with these cards: total and free bytes by name, or the error that asking for them gives."""
    names = list(cards)

    def memory_of(index: int) -> SimpleNamespace:
        found = cards[names[index]]
        if isinstance(found, int):
            raise pynvml.NVMLError(found)
        return SimpleNamespace(total=found[0], free=found[1])

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: len(cards))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda index: names[index])
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", lambda index: f"GPU-{index}f00-baa")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", memory_of)


TWO: dict[str, tuple[int, int] | int] = {"card 0": (24 * GIB, 20 * GIB), "card 1": (16 * GIB, 16 * GIB)}


@pytest.mark.usefixtures("bare")
def test_nvml_tells_of_every_card(monkeypatch: pytest.MonkeyPatch) -> None:
    driver(monkeypatch, TWO)
    assert look() == replace(WITH_CARDS, threads=physical_cores())


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(
    ("visible", "cards"),
    [
        ("1", [1]),
        ("1,0", [1, 0]),
        ("GPU-1f00", [1]),
        ("0,-1,1", [0]),
        ("", []),
        ("-1", []),
        ("MIG-GPU-0", []),
    ],
)
def test_a_card_that_cuda_will_not_see_does_not_count(
    monkeypatch: pytest.MonkeyPatch, visible: str, cards: list[int]
) -> None:
    driver(monkeypatch, TWO)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert look().cards == tuple(CARDS[index] for index in cards)


@pytest.mark.usefixtures("bare")
def test_a_gpu_on_an_arm_chip_without_memory_to_tell_shares_it(monkeypatch: pytest.MonkeyPatch) -> None:
    driver(monkeypatch, {"NVIDIA GB10": pynvml.NVML_ERROR_NOT_SUPPORTED})
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    found = look()
    assert found.unified
    assert found.cards == (Gpu("NVIDIA GB10", 64 * GIB, 40 * GIB),)


@pytest.mark.usefixtures("bare")
def test_a_lost_card_is_said_and_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    driver(
        monkeypatch,
        TWO | {"card 2": pynvml.NVML_ERROR_GPU_IS_LOST, "a slice": pynvml.NVML_ERROR_NOT_SUPPORTED},
    )
    found = look()
    assert (found.cards, found.unified) == (CARDS, False)
    assert [note.split(":")[0] for note in found.notes] == ["card 2 is not counted", "a slice is not counted"]


@pytest.mark.usefixtures("bare")
def test_a_jetson_without_nvml(tmp_path: Path) -> None:
    (tmp_path / "compatible").write_bytes(b"nvidia,p3737-0000+p3701-0000\0nvidia,tegra234\0")
    found = look()
    assert (found.unified, found.cards) == (True, (Gpu("NVIDIA Tegra", 64 * GIB, 40 * GIB),))


def amd(root: Path, card: str, pci: str, vram: float, gtt: float, metrics: bytes) -> None:
    """What amdgpu shows of a GPU; the header of gpu_metrics is its size, format and content revision."""
    folder = tree(root / "drm" / card / "device", {
        "mem_info_vram_total": str(int(vram * GIB)),
        "mem_info_vram_used": str(int(vram * GIB) // 4),
        "mem_info_gtt_total": str(int(gtt * GIB)),
        "device": pci,
    })  # fmt: skip
    (folder / "gpu_metrics").write_bytes(metrics)


APU, CARD = b"\x08\x01\x03\x00\xff\xff", b"\x78\x00\x01\x03\xff\xff"


@pytest.mark.usefixtures("bare")
def test_an_apu_shares_what_it_may_map(tmp_path: Path) -> None:
    amd(tmp_path, "card1", "0x1586", vram=0.5, gtt=31, metrics=APU)
    tree(tmp_path / "drm/card1-DP-1", {"status": "connected"})
    found = look()
    assert (found.unified, found.cards) == (True, (Gpu("AMD GPU 0x1586", 31 * GIB, 40 * GIB, "VULKAN"),))


@pytest.mark.usefixtures("bare")
def test_an_apu_with_a_large_carve_out_is_a_card(tmp_path: Path) -> None:
    amd(tmp_path, "card0", "0x1586", vram=96, gtt=16, metrics=APU)
    found = look()
    assert (found.unified, found.cards) == (False, (Gpu("AMD GPU 0x1586", 96 * GIB, 72 * GIB, "VULKAN"),))


@pytest.mark.usefixtures("bare")
def test_a_processors_own_gpu_is_idle_beside_a_card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    amd(tmp_path, "card0", "0x15bf", vram=0.5, gtt=31, metrics=APU)
    amd(tmp_path, "card1", "0x744c", vram=24, gtt=31, metrics=CARD)
    found = look()
    assert (found.unified, [card.name for card in found.cards]) == (False, ["AMD GPU 0x744c"])
    driver(monkeypatch, TWO)
    assert look().cards == CARDS


VM_STAT = """\
Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                                    10069.
Pages active:                                 432859.
Pages inactive:                               426177.
Pages speculative:                              5899.
Pages throttled:                                   0.
Pages wired down:                             171481.
Pages purgeable:                               11278.
"Translation faults":                     1935466161.
Pages copy-on-write:                        84466299.
Pages zero filled:                        1166655512.
Pages reactivated:                          14752750.
Pages purged:                               21102159.
File-backed pages:                            398262.
Anonymous pages:                              466673.
Pages stored in compressor:                  1108263.
Pages occupied by compressor:                1013366.
"""


def test_vm_stat_of_a_mac() -> None:
    assert reclaimable_bytes(VM_STAT) == 16384 * (10069 + 426177 + 5899 + 11278)
    with pytest.raises(ValueError, match="page size"):
        reclaimable_bytes("vm_stat: not found")


@pytest.mark.usefixtures("bare")
def test_apple_silicon_is_unified(monkeypatch: pytest.MonkeyPatch) -> None:
    said = subprocess.CompletedProcess(["vm_stat"], 0, VM_STAT)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: said)
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    found, free = look(), reclaimable_bytes(VM_STAT)
    assert (found.unified, found.available) == (True, free)
    assert found.cards == (Gpu("Apple GPU", 64 * GIB, free, "METAL"),)

    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError("vm_stat")

    monkeypatch.setattr(subprocess, "run", missing)
    assert look().available == 40 * GIB


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


@pytest.mark.parametrize(
    ("files", "backends"),
    [
        (["libggml-base.so", "libggml-cpu.so", "libggml-cuda.so", "libllama.so"], ("cuda",)),
        (["libggml-cuda.so.0", "libggml-cuda.so.0.25.3", "libggml-vulkan.so"], ("cuda", "vulkan")),
        (["libggml-metal.0.dylib", "libggml-blas.dylib", "libggml-cpu.dylib"], ("metal",)),
        (["ggml-base.dll", "ggml-cpu-haswell.dll", "ggml-hip.dll"], ("hip",)),
        (["libggml.so", "libggml-base.so.0.25.3", "libggml-cpu.so", "libggml-rpc.so", "ggml-cuda.h"], ()),
    ],
)
def test_a_builds_backends_are_told_from_its_files(
    files: list[str], backends: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in files:
        (tmp_path / name).touch()
    assert offload_backends(tmp_path) == backends
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
    assert offload_backends() == backends
    assert offload_backends(tmp_path / "none") == ()


def test_the_installed_build_says_of_itself_what_its_files_say() -> None:
    # A build for a GPU offloads nothing where there is none.
    assert bool(offload_backends()) == bindings.can_offload() or (offload_backends() and not look().cards)


def test_the_files_are_told_without_loading_the_engine() -> None:
    asks = "from runner.planning.hardware.build import offload_backends; offload_backends()"
    said = f"import sys; {asks}; print('llama_cpp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_shipped_options_carry_their_file_name_and_can_be_asked_for() -> None:
    for name in OPTIONS:
        assert option(name).name == name
        assert OverridesParser.create().parse_override(f"hardware={name}").value() == name


@pytest.mark.parametrize(
    ("name", "ram", "vram", "cards"),
    [
        ("cpu_64gb", 57.6, 0, 0),
        ("rtx3060_12gb", 28.8, 10, 1),
        ("rtx4090_24gb", 57.6, 21.84, 1),
        ("2x_rtx3090", 57.6, 43.68, 2),
        ("rtx5090_32gb", 57.6, 28.98, 1),
        ("a100_80gb", 115.2, 72.8, 1),
        ("h200", 240, 127.77, 1),
        ("m2_16gb", 12.8, 12.8, 1),
        ("m3max_48gb", 38.4, 38.4, 1),
        ("iphone17_12gb", 9, 9, 1),
        ("strix_halo_128gb", 99.2, 99.2, 1),
        ("dgx_spark_128gb", 95.2, 95.2, 1),
    ],
)
def test_the_budget_of_a_shipped_option(name: str, ram: float, vram: float, cards: int) -> None:
    """In GiB, as the conventions give it for a machine with nothing running."""
    found = probe(option(name), can_offload=False, machine=Machine())
    assert (found.ram_budget / GIB, found.vram_budget / GIB) == pytest.approx((ram, vram), abs=0.01)
    assert (found.cards, found.unified) == (cards, ram == vram)
