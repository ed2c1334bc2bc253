"""Which GPU backends the installed llama.cpp was built with, told from its files and without loading it.

The planner's formula needs the answer and nothing else of the engine; loading the library starts its backends.
"""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

# ggml's backends whose devices are GPUs. Not among them: base and cpu, blas (a matrix library beside the CPU),
# and rpc, whose memory is another machine's.
_GPU_BACKENDS = "cuda|hip|musa|metal|vulkan|sycl|opencl|cann|webgpu"
_LIBRARY = re.compile(rf"(?:lib)?ggml-({_GPU_BACKENDS})\.(?:\d[\d.]*\.)?(?:so|dylib|dll)(?:\.[\d.]+)?")


def offload_backends(folder: Path | None = None) -> tuple[str, ...]:
    """ggml's GPU backends in the installed build, as ``("cuda",)``; empty for a CPU build, or for none at all.

    What the files cannot say is whether a driver and a device are there too: ``llama_supports_gpu_offload``
    is true only then.

    Args:
        folder: where the libraries are; None is where llama-cpp-python looks, ``LLAMA_CPP_LIB_PATH`` included.
    """
    folder = _libraries() if folder is None else folder
    if folder is None or not folder.is_dir():
        return ()
    found = {match[1] for path in folder.iterdir() if (match := _LIBRARY.fullmatch(path.name))}
    return tuple(sorted(found))


def _libraries() -> Path | None:
    elsewhere = os.environ.get("LLAMA_CPP_LIB_PATH")
    if elsewhere is not None:
        return Path(elsewhere)
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "lib"
