"""How much memory a job may use: what this machine has free, or what a hardware option declares.

Conventions, all in bytes:

- **RAM budget** of this machine: the smaller of what is available now and what is left of the total after the
  operating system's reserve. "Available" already excludes what others use, so the reserve is not taken twice.
- **Reserve**: ``hardware.reserve``, else min(16 GiB, max(3 GiB, 10 % of the total)), at most half of it.
- **VRAM budget**: free memory of every card less a margin of max(2 GiB, 9 % of the card) for the driver's
  context, the display and fragmentation. It counts only where the engine can offload.
- A **declared** figure describes a machine: the same reserve and margin come off it. A smaller one than this
  machine's caps the job; a larger one can be planned but not run.
- A cgroup's limit replaces the total, and the room left under it caps what is available.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil
import pynvml

from runner.config import HardwareConfig
from runner.errors import PlanRefusedError
from runner.planning import cgroup

GIB = 2**30
REBUILD = 'CMAKE_ARGS="-DGGML_CUDA=on" pip install --force-reinstall --no-cache-dir llama-cpp-python==0.3.36'


@dataclass(frozen=True)
class Gpu:
    """One card."""

    name: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class Hardware:
    """The memory and cores a job may use.

    Attributes:
        name: the hardware option.
        ram_total: RAM of the machine, or of its container, or as declared.
        ram_available: what is free of it now; all of it where more is declared than this machine has.
        ram_budget: what a job may use of it.
        gpus: the cards whose memory counts.
        vram_budget: what a job may use of all of them; 0 where the engine cannot offload.
        threads: physical cores this process may use.
        runnable: False where more is declared than this machine has; ``reason`` says what.
        notes: what a person should know, each in one line.
    """

    name: str
    ram_total: int
    ram_available: int
    ram_budget: int
    gpus: tuple[Gpu, ...] = ()
    vram_budget: int = 0
    threads: int = 1
    runnable: bool = True
    reason: str = ""
    notes: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise where a job can be planned for this hardware but not run on this machine.

        Raises:
            PlanRefusedError: more is declared than this machine has.
        """
        if not self.runnable:
            raise PlanRefusedError(
                f"{self.reason}; plan it with python -m runner.plan, or run with hardware=auto"
            )


def reserve_bytes(total: int, declared: int | None = None) -> int:
    """RAM left to the operating system, of a machine with ``total`` bytes."""
    if declared is not None:
        return declared
    return min(16 * GIB, max(3 * GIB, total // 10), total // 2)


def margin_bytes(total: int) -> int:
    """Memory of a card with ``total`` bytes that a job leaves alone."""
    return min(max(2 * GIB, total * 9 // 100), total // 2)


def probe(config: HardwareConfig, *, can_offload: bool) -> Hardware:
    """What the job may use, on this machine or on the one that ``config`` declares.

    Args:
        config: declared figures; None is what the machine has.
        can_offload: whether the engine's build can use a card (``llama_supports_gpu_offload``).
    """
    held = cgroup.limits()
    memory = psutil.virtual_memory()
    total = min(memory.total, held.memory_bytes or memory.total)
    available = min(
        memory.available,
        total,
        memory.available if held.memory_left_bytes is None else held.memory_left_bytes,
    )
    cards, notes = _cards(can_offload=can_offload)
    return _within(config, total, available, cards, can_offload, physical_cores(cpus=held.cpus), notes)


def _within(
    config: HardwareConfig,
    total: int,
    available: int,
    cards: tuple[Gpu, ...],
    can_offload: bool,
    threads: int,
    notes: tuple[str, ...],
) -> Hardware:
    """The budget on a machine that was looked at, under what ``config`` declares."""
    reasons: list[str] = []
    ram_budget = min(available, total - reserve_bytes(total, config.reserve))
    if config.ram is not None:
        declared = config.ram - reserve_bytes(config.ram, config.reserve)
        if config.ram > total:
            reasons.append(
                f"hardware={config.name} declares {gib(config.ram)} of RAM, this machine has {gib(total)}"
            )
            ram_budget, available = declared, config.ram
        else:
            ram_budget, available = min(declared, available), min(config.ram, available)
        total = config.ram
    usable = cards if can_offload else ()
    vram_budget = sum(max(card.free_bytes - margin_bytes(card.total_bytes), 0) for card in usable)
    if config.vram is not None:
        here = sum(card.total_bytes for card in usable)
        declared = max(config.vram - margin_bytes(config.vram), 0)
        if config.vram > here:
            reasons.append(
                f"hardware={config.name} declares {gib(config.vram)} of VRAM, this build can use {gib(here)}"
            )
            vram_budget = declared
        else:
            vram_budget = min(declared, vram_budget)
        usable = (Gpu("declared", config.vram, config.vram),) if config.vram else ()
    return Hardware(
        name=config.name,
        ram_total=total,
        ram_available=available,
        ram_budget=max(ram_budget, 0),
        gpus=usable,
        vram_budget=vram_budget,
        threads=threads,
        runnable=not reasons,
        reason="; ".join(reasons),
        notes=notes,
    )


def gib(size: int) -> str:
    """``size`` bytes as a person reads them."""
    return f"{size / GIB:.2f} GiB" if size >= GIB else f"{size / 2**20:.1f} MiB"


def _cards(*, can_offload: bool) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """Every NVIDIA card, and what to say about cards the engine's build cannot use."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        if can_offload:
            return (), ("this build can offload, but only NVIDIA cards are counted: planned for RAM alone",)
        return (), ()
    try:
        cards = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            try:
                memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            except pynvml.NVMLError:  # a card without memory of its own
                continue
            name = pynvml.nvmlDeviceGetName(handle)
            name = name.decode() if isinstance(name, bytes) else str(name)
            cards.append(Gpu(name, int(memory.total), int(memory.free)))
    finally:
        pynvml.nvmlShutdown()
    if cards and not can_offload:
        names = ", ".join(f"{card.name} ({gib(card.total_bytes)})" for card in cards)
        return tuple(cards), (
            f"{names} is here, but this build of llama.cpp is for CPU only; rebuild it: {REBUILD}",
        )
    return tuple(cards), ()


def physical_cores(topology: Path = Path("/sys/devices/system/cpu"), cpus: float | None = None) -> int:
    """Cores this process may keep busy: llama.cpp's threads spin, so hyper-threads and quotas count.

    Args:
        topology: where Linux describes its CPUs; elsewhere psutil's count of cores serves.
        cpus: a quota in CPUs, None where there is none.
    """
    try:
        allowed = os.sched_getaffinity(0)
    except AttributeError:  # not on macOS or Windows
        cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    else:
        seen = set()
        for cpu in allowed:
            folder = topology / f"cpu{cpu}" / "topology"
            try:
                package, core = (folder / name for name in ("physical_package_id", "core_id"))
                seen.add((int(package.read_text()), int(core.read_text())))
            except (OSError, ValueError):
                seen.add((-1, cpu))
        cores = len(seen)
    return max(1, cores if cpus is None else min(cores, int(cpus)))
