"""What this machine has, looked at once: memory under its container's limit, GPUs, cores.

A snapshot, so that the budgets of many hardware options cost one look; :mod:`budget` does the arithmetic.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil

from runner.planning.hardware import cgroup, gpus
from runner.planning.hardware.gpus import Gpu


@dataclass(frozen=True)
class Machine:
    """What a machine has and what is free of it; as it stands without arguments, nothing at all.

    Attributes:
        total: bytes of RAM, of the container where there is one.
        available: bytes of it that can be had without swapping.
        cards: the GPUs with memory of their own or, where ``unified``, the GPU that shares RAM.
        unified: whether processor and GPU share one memory.
        threads: physical cores that this process may use.
        notes: what a person should know, each in one line.
    """

    total: int = 0
    available: int = 0
    cards: tuple[Gpu, ...] = ()
    unified: bool = False
    threads: int = 1
    notes: tuple[str, ...] = ()


def look() -> Machine:
    """This machine now: cgroups, RAM, every GPU, cores. Takes milliseconds, so share it where it may be old."""
    held = cgroup.limits()
    memory = psutil.virtual_memory()
    total = min(memory.total, held.memory_bytes or memory.total)
    available = min(
        _available(memory.available),
        total,
        total if held.memory_left_bytes is None else held.memory_left_bytes,
    )
    cards, unified, notes = gpus.find(total, available)
    return Machine(total, available, cards, unified, physical_cores(cpus=held.cpus), notes)


def _available(told: int) -> int:
    """Bytes of RAM that can be had without swapping: ``told`` by psutil, but on macOS what can be reclaimed."""
    if platform.system() == "Darwin":
        try:
            said = subprocess.run(["vm_stat"], capture_output=True, text=True, check=True, timeout=5)
            return reclaimable_bytes(said.stdout)
        except (OSError, subprocess.SubprocessError, ValueError):
            pass  # psutil leaves out what is purgeable: never more than there is
    return told


def reclaimable_bytes(vm_stat: str) -> int:
    """Bytes that macOS can give: free, inactive, speculative and purgeable pages, from ``vm_stat``'s output.

    Raises:
        ValueError: it names no page size.
    """
    page = re.search(r"page size of (\d+) bytes", vm_stat)
    if page is None:
        raise ValueError("vm_stat names no page size")
    counts = re.findall(r"^Pages (?:free|inactive|speculative|purgeable):\s+(\d+)\.", vm_stat, re.MULTILINE)
    return int(page[1]) * sum(map(int, counts))


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
