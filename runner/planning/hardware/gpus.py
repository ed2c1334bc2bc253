"""Every GPU of this machine, told without the engine: cards with memory of their own, or a GPU that shares RAM.

- **NVIDIA**, by NVML: all cards that ``CUDA_VISIBLE_DEVICES`` leaves. A GPU on an Arm chip for which NVML has
  no memory to tell (``NVML_ERROR_NOT_SUPPORTED`` on GB10, Thor and Orin) shares the processor's. Older Jetsons
  have no NVML and are known by their device tree.
- **AMD** on Linux, by amdgpu's files in sysfs. An APU takes its memory from RAM while its carve-out is smaller
  than what it may map (``apu_prefer_gtt`` in amdgpu_ttm.c); with a larger carve-out it is a card of that size.
- **Apple** silicon shares all of its memory.

The first vendor in this order whose GPU is here is the one that counts: a processor's own GPU beside a card is
left idle, as llama.cpp leaves it (``llama_model_load_from_file_impl``).
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml

DRM = Path("/sys/class/drm")
DEVICE_TREE = Path("/proc/device-tree/compatible")


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Attributes:
        name: as its driver says it.
        total_bytes: its memory; of a GPU that shares RAM, as much of it as it may map.
        free_bytes: what is free of that now.
        backend: the ggml backend that a build needs to use it, as in ``-DGGML_CUDA``.
    """

    name: str
    total_bytes: int
    free_bytes: int
    backend: str = "CUDA"


_Seen = tuple[list[Gpu], list[Gpu], list[str]]  # with memory of their own, sharing RAM, what to say


def find(ram_total: int, ram_available: int) -> tuple[tuple[Gpu, ...], bool, tuple[str, ...]]:
    """The GPUs that count, whether they share the processor's memory, and what a person should know.

    Args:
        ram_total: bytes of RAM, which a GPU without memory of its own shares.
        ram_available: bytes free of it.
    """
    notes: list[str] = []
    for vendor in (_nvidia, _tegra, _amd, _apple):
        own, shared, said = vendor(ram_total, ram_available)
        notes += said
        if own or shared:
            return tuple(own or shared), not own, tuple(notes)
    return (), False, tuple(notes)


def _nvidia(ram_total: int, ram_available: int) -> _Seen:
    own: list[Gpu] = []
    shared: list[Gpu] = []
    notes: list[str] = []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return own, shared, notes
    try:
        for index, handle in _visible():
            name = f"NVIDIA card {index}"
            try:
                name = str(pynvml.nvmlDeviceGetName(handle))
                memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
                own.append(Gpu(name, int(memory.total), int(memory.free)))
            except pynvml.NVMLError as error:
                # Of a slice of a server's card it can be unsupported too, but those sit in no Arm system-on-chip.
                if isinstance(error, pynvml.NVMLError_NotSupported) and platform.machine() in (
                    "aarch64",
                    "arm64",
                ):
                    shared.append(Gpu(name, ram_total, ram_available))
                else:
                    notes.append(f"{name} is not counted: NVML does not tell its memory ({error})")
    finally:
        pynvml.nvmlShutdown()
    return own, shared, notes


def _visible() -> list[tuple[int, Any]]:
    """NVML's index and handle of the cards that CUDA will see.

    ``CUDA_VISIBLE_DEVICES`` counts in CUDA's order, which is NVML's unless the cards differ in speed.
    """
    handles = [(i, pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(pynvml.nvmlDeviceGetCount())]
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return handles
    seen = []
    for entry in (part.strip() for part in named.split(",")):
        by_uuid = entry.startswith("GPU-")
        chosen = [
            (index, handle)
            for index, handle in handles
            if (str(pynvml.nvmlDeviceGetUUID(handle)).startswith(entry) if by_uuid else entry == str(index))
        ]
        if len(chosen) != 1:  # CUDA ignores the first entry that names no card, and all after it
            break
        seen += chosen
    return seen


def _tegra(ram_total: int, ram_available: int) -> _Seen:
    try:
        here = b"nvidia,tegra" in DEVICE_TREE.read_bytes()
    except OSError:
        here = False
    return [], [Gpu("NVIDIA Tegra", ram_total, ram_available)] if here else [], []


def _amd(ram_total: int, ram_available: int) -> _Seen:
    own: list[Gpu] = []
    shared: list[Gpu] = []
    for device in sorted(DRM.glob("card*/device")):
        try:
            vram, used, gtt = (
                int((device / f"mem_info_{what}").read_text())
                for what in ("vram_total", "vram_used", "gtt_total")
            )
            name = f"AMD GPU {(device / 'device').read_text().strip()}"
        except (OSError, ValueError):
            continue
        # Vulkan, as every AMD GPU has it and ROCm leaves many out.
        if _is_apu(device) and vram < gtt:
            shared.append(Gpu(name, min(gtt, ram_total), ram_available, "VULKAN"))
        else:
            own.append(Gpu(name, vram, max(vram - used, 0), "VULKAN"))
    return own, shared, []


def _is_apu(device: Path) -> bool:
    """Whether ``gpu_metrics`` has an APU's format: 2 or 3, a card's is 1 (the kernel's kgd_pp_interface.h)."""
    try:
        header = (device / "gpu_metrics").read_bytes()[:4]
    except OSError:
        return False
    return len(header) == 4 and header[2] in (2, 3)


def _apple(ram_total: int, ram_available: int) -> _Seen:
    here = platform.system() == "Darwin" and platform.machine() == "arm64"
    return [], [Gpu("Apple GPU", ram_total, ram_available, "METAL")] if here else [], []
