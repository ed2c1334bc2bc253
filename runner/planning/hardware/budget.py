"""How much memory a job may use: what this machine has free, or what a hardware option declares.

Conventions, all in bytes:

- **Floor**: what is left to the operating system, ``hardware.reserve``, else min(16 GiB, max(3 GiB, 10 % of the
  total)), at most half of what it is taken from.
- **RAM budget**: what is available now less the floor. Available is what can be had without swapping, so it is
  the room that others leave; the floor keeps some of it for what they come to need.
- **VRAM budget**: free memory of every card less a margin of max(2 GiB, 9 % of the card), at most half of it, for
  the driver's context, the display and fragmentation. It counts only where the engine's build can offload.
- **Unified memory** is one pool, and both budgets are the pool's: min(80 % of RAM, RAM less the floor), and no
  more than is available or than the GPU may map. Without a build that can offload it is plain RAM.
- A **declared** machine is taken as empty: the same floor, or the same margin for each of its cards, comes off.
  One smaller than this machine caps the job; a larger or different one can be planned but not run. A machine
  counts as having what is declared if at most a sixteenth is missing: firmware and kernel keep a part of the
  memory that is sold (a "16 GB" machine has 15.5 GiB, an RTX 5090 31.8).
- A cgroup's limit replaces the total, and the room left under it caps what is available.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from runner.config import HardwareConfig
from runner.errors import PlanRefusedError
from runner.planning.hardware.gpus import Gpu
from runner.planning.hardware.machine import Machine, look, physical_cores

__all__ = [
    "GIB",
    "Gpu",
    "Hardware",
    "Machine",
    "gib",
    "look",
    "margin_bytes",
    "physical_cores",
    "probe",
    "reserve_bytes",
    "with_held",
]

GIB = 2**30
REBUILD = (
    'CMAKE_ARGS="-DGGML_{backend}=on" pip install --force-reinstall --no-cache-dir llama-cpp-python==0.3.36'
)


@dataclass(frozen=True)
class Hardware:
    """The memory and cores a job may use.

    Attributes:
        name: the hardware option.
        ram_total: RAM of the machine, or of its container, or as declared.
        ram_available: what is free of it now; all of it where the machine is declared and not this one.
        ram_budget: what a job may use of it.
        gpus: the GPUs whose memory counts.
        vram_budget: what a job may use of all of them; 0 where the engine cannot offload.
        threads: physical cores this process may use.
        runnable: False where this machine is not the one declared; ``reason`` says why.
        notes: what a person should know, each in one line.
        unified: processor and GPU share one memory: both budgets are of the same bytes, never to be added.
        reserve: ``hardware.reserve``, where it replaces the floor.
        vram_limit: the VRAM budget if nothing ran; None is that of ``gpus``, or of the pool.
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
    unified: bool = False
    reserve: int | None = None
    vram_limit: int | None = None

    def check(self) -> None:
        """Raise where a job can be planned for this hardware but not run on this machine.

        Raises:
            PlanRefusedError: this machine is not the one declared, or smaller.
        """
        if not self.runnable:
            raise PlanRefusedError(
                f"{self.reason}; plan it with python -m runner.plan, or run with hardware=auto"
            )

    @property
    def cards(self) -> int:
        """How many GPUs the VRAM is spread over; at least 1 where there is any."""
        return max(len(self.gpus), 1 if self.vram_budget else 0)


def reserve_bytes(total: int, declared: int | None = None) -> int:
    """RAM left to the operating system, of a machine with ``total`` bytes and nothing running."""
    if declared is not None:
        return declared
    return min(16 * GIB, max(3 * GIB, total // 10), total // 2)


def margin_bytes(total: int) -> int:
    """Memory of a card with ``total`` bytes that a job leaves alone."""
    return min(max(2 * GIB, total * 9 // 100), total // 2)


def probe(config: HardwareConfig, *, can_offload: bool, machine: Machine | None = None) -> Hardware:
    """What the job may use, on this machine or on the one that ``config`` declares.

    Args:
        config: declared figures; None is what the machine has.
        can_offload: whether the engine's build can use a GPU (``llama_supports_gpu_offload``, or by its files
            :func:`runner.planning.hardware.build.offload_backends`).
        machine: a look at this machine that is recent enough; None looks now. ``Machine()`` has nothing, so that
            a declared machine is planned for itself, whatever this one has free.
    """
    here = look() if machine is None else machine
    pooled = here.unified and can_offload if config.unified is None else config.unified
    # hardware.vram=0 leaves the GPU idle, of whatever kind it is.
    budget = _pooled if pooled and config.vram is None else _separate
    return budget(config, here, can_offload)


def with_held(hardware: Hardware, *, ram_bytes: int = 0, vram_bytes: int = 0) -> Hardware:
    """The budget of a process that itself holds these bytes and would free them first.

    They come on top of what is left, but budgets never pass those of the same machine with nothing running.

    Args:
        hardware: as probed while the bytes are held.
        ram_bytes: what the process holds of RAM; of unified memory, whatever is in no ``vram_bytes``.
        vram_bytes: what it holds of all cards together.
    """
    total, available, reserve = hardware.ram_total, hardware.ram_available, hardware.reserve
    if hardware.unified:
        limit = _pool_bytes(total, reserve) if hardware.vram_limit is None else hardware.vram_limit
        pool = _given_back(hardware.ram_budget, ram_bytes + vram_bytes, limit)
        return replace(hardware, ram_budget=pool, vram_budget=pool)
    # With more available the floor rises from its half of it, and a card's margin must be free before a job is.
    rise = _floor(total, available + ram_bytes, reserve) - _floor(total, available, reserve)
    short = sum(max(margin_bytes(card.total_bytes) - card.free_bytes, 0) for card in hardware.gpus)
    limit = _vram_limit(hardware.gpus) if hardware.vram_limit is None else hardware.vram_limit
    return replace(
        hardware,
        ram_budget=_given_back(hardware.ram_budget, ram_bytes - rise, total - _floor(total, total, reserve)),
        vram_budget=_given_back(hardware.vram_budget, vram_bytes - short, limit),
    )


def gib(size: int) -> str:
    """``size`` bytes as a person reads them."""
    return f"{size / GIB:.2f} GiB" if size >= GIB else f"{size / 2**20:.1f} MiB"


def _given_back(budget: int, held: int, limit: int) -> int:
    return max(budget, min(budget + held, limit))


def _floor(total: int, available: int, reserve: int | None) -> int:
    """What the operating system keeps of ``available`` bytes, on a machine with ``total``."""
    return reserve if reserve is not None else min(reserve_bytes(total), available // 2)


def _pool_bytes(total: int, reserve: int | None) -> int:
    """What a job may use of ``total`` bytes of unified memory with nothing else running."""
    return max(min(total * 4 // 5, total - reserve_bytes(total, reserve)), 0)


def _vram_limit(cards: tuple[Gpu, ...]) -> int:
    """What a job may use of ``cards`` with nothing else running."""
    return sum(card.total_bytes - margin_bytes(card.total_bytes) for card in cards)


def _lacks(here: int, declared: int) -> bool:
    return here < declared - declared // 16


def _separate(config: HardwareConfig, here: Machine, can_offload: bool) -> Hardware:
    """The budgets of RAM and of the cards beside it, if any."""
    cards = here.cards if can_offload and not here.unified else ()
    installed = sum(card.total_bytes for card in cards)
    reasons = []
    if config.ram is not None and _lacks(here.total, config.ram):
        reasons.append(_declares(config, f"{gib(config.ram)} of RAM, this machine has {gib(here.total)}"))
    if config.vram is not None and _lacks(installed, config.vram):
        shares = here.unified and can_offload
        found = "this machine's GPU shares its RAM" if shares else f"this build can use {gib(installed)}"
        reasons.append(_declares(config, f"{gib(config.vram)} of VRAM, {found}"))
    total, available = here.total, here.available
    ram = max(available - _floor(total, available, config.reserve), 0)
    if config.ram is not None:
        declared = max(config.ram - _floor(config.ram, config.ram, config.reserve), 0)
        if reasons:
            total = available = config.ram
            ram = declared
        else:
            total, available, ram = min(config.ram, total), min(config.ram, available), min(declared, ram)
    vram = sum(max(card.free_bytes - margin_bytes(card.total_bytes), 0) for card in cards)
    limit = _vram_limit(cards)
    if config.vram is not None:
        share = config.vram // config.cards
        declared = config.cards * (share - margin_bytes(share))
        if reasons:
            cards = (Gpu("declared", share, share),) * config.cards
            vram = limit = declared
        else:
            vram, limit = min(declared, vram), min(declared, limit)
        cards = cards if config.vram else ()
    return Hardware(
        name=config.name,
        ram_total=total,
        ram_available=available,
        ram_budget=ram,
        gpus=cards,
        vram_budget=vram,
        threads=here.threads,
        runnable=not reasons,
        reason="; ".join(reasons),
        notes=_notes(config, here, can_offload),
        reserve=config.reserve,
        vram_limit=limit,
    )


def _pooled(config: HardwareConfig, here: Machine, can_offload: bool) -> Hardware:
    """The one budget of memory that processor and GPU share."""
    total = here.total if config.ram is None else config.ram
    reasons = []
    if not here.unified:
        reasons.append(_declares(config, f"{gib(total)} of unified memory, this machine has none"))
    elif not can_offload:
        reasons.append(_declares(config, f"{gib(total)} of unified memory, this build is for CPU only"))
    if config.ram is not None and _lacks(here.total, config.ram):
        reasons.append(_declares(config, f"{gib(total)} of RAM, this machine has {gib(here.total)}"))
    notes = _notes(config, here, can_offload)
    limit = _pool_bytes(total, config.reserve)
    if reasons:
        cards: tuple[Gpu, ...] = (Gpu("declared", total, total),)
        pool, available = limit, total if config.ram is not None else here.available
    else:
        cards, total = here.cards, min(total, here.total)
        mapped = min((card.total_bytes for card in cards), default=total)
        if mapped < limit:
            notes += (f"the GPU may map {gib(mapped)} of {gib(total)} (ttm.pages_limit of the kernel)",)
        limit = min(limit, _pool_bytes(here.total, config.reserve), mapped)
        pool, available = min(limit, here.available), min(total, here.available)
    return Hardware(
        name=config.name,
        ram_total=total,
        ram_available=available,
        ram_budget=pool,
        gpus=cards,
        vram_budget=pool,
        threads=here.threads,
        runnable=not reasons,
        reason="; ".join(reasons),
        notes=notes,
        unified=True,
        reserve=config.reserve,
        vram_limit=limit,
    )


def _declares(config: HardwareConfig, what: str) -> str:
    return f"hardware={config.name} declares {what}"


def _notes(config: HardwareConfig, here: Machine, can_offload: bool) -> tuple[str, ...]:
    """What the machine's look says, and why a GPU that is here does not count."""
    if here.cards and not can_offload and config.vram != 0:
        names = ", ".join(f"{card.name} ({gib(card.total_bytes)})" for card in here.cards)
        rebuild = REBUILD.format(backend=here.cards[0].backend)
        return (
            *here.notes,
            f"{names} is here, but this build of llama.cpp is for CPU only; rebuild it: {rebuild}",
        )
    if can_offload and not here.cards and config.vram is None and not config.unified:
        return (*here.notes, "this build can offload, but no GPU tells its memory: planned for RAM alone")
    return here.notes
