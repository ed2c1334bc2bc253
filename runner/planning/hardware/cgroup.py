"""What a container allows: memory limit, memory in use and CPU quota, from cgroup v2 or v1.

A limit may sit on any ancestor of this process's group, so every level up to the root counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_UNLIMITED = 1 << 60  # cgroup v1 writes a huge number where v2 writes "max"


@dataclass(frozen=True)
class Limits:
    """What the groups of this process allow; None is no limit.

    Attributes:
        memory_bytes: the smallest memory limit.
        memory_left_bytes: the smallest room under a limit; file pages count as room, they can be dropped.
        cpus: the smallest CPU quota, in CPUs.
    """

    memory_bytes: int | None = None
    memory_left_bytes: int | None = None
    cpus: float | None = None


def limits(root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> Limits:
    """The limits on this process; no limit at all where there are no cgroups.

    Args:
        root: where the cgroup file systems are mounted.
        membership: the file that says which groups this process is in (``/proc/self/cgroup``).
    """
    memory: list[int] = []
    left: list[int] = []
    cpus: list[float] = []
    for group in _groups(root, membership, "memory"):
        limit, used = _memory_limit(group), _memory_used(group)
        if limit is not None:
            memory.append(limit)
            left.append(max(limit - used, 0))
    for group in _groups(root, membership, "cpu"):
        quota = _quota(group)
        if quota is not None:
            cpus.append(quota)
    return Limits(min(memory, default=None), min(left, default=None), min(cpus, default=None))


def _groups(root: Path, membership: Path, controller: str) -> Iterator[Path]:
    """This process's group for ``controller`` and its ancestors, the innermost first."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top = root if (root / "cgroup.controllers").exists() else root / "unified"
        elif controller in controllers.split(","):
            top = next((root / name for name in (controller, controllers) if (root / name).is_dir()), root)
        else:
            continue
        # In a container the path may be the host's while the mount shows the container's group as its root.
        parts = [part for part in path.split("/") if part not in ("", "..")]
        while parts and not top.joinpath(*parts).is_dir():
            parts.pop(0)
        for depth in range(len(parts), -1, -1):
            yield top.joinpath(*parts[:depth])


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _memory_limit(group: Path) -> int | None:
    text = _read(group / "memory.max") or _read(group / "memory.limit_in_bytes")
    if text is None or text == "max" or int(text) >= _UNLIMITED:
        return None
    return int(text)


def _memory_used(group: Path) -> int:
    text = _read(group / "memory.current") or _read(group / "memory.usage_in_bytes") or "0"
    stat = dict(line.split()[:2] for line in (_read(group / "memory.stat") or "").splitlines())
    prefix = "total_" if "total_inactive_file" in stat else ""
    pages = sum(int(stat.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
    return max(int(text) - pages, 0)


def _quota(group: Path) -> float | None:
    text = _read(group / "cpu.max")
    if text is not None:
        quota, period = (*text.split(), "100000")[:2]
    else:
        quota = _read(group / "cpu.cfs_quota_us") or "-1"
        period = _read(group / "cpu.cfs_period_us") or "100000"
    if quota == "max" or int(quota) <= 0 or int(period) <= 0:
        return None
    return int(quota) / int(period)
