"""What the engine itself would allocate for a plan, asked of a process that may die and allocates no weights.

llama.cpp's asserts end the process, so the question goes to ``python -m runner.engine.dryrun``: a request in
JSON on stdin, the log lines that name sizes in JSON on stdout. It loads metadata alone (``no_alloc``) and
creates the context with the parameters of the real run.
"""

from __future__ import annotations

import glob
import json
import logging
import math
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from runner.engine.context import Context, ContextParams, context_params
from runner.engine.weights import Weights
from runner.errors import EngineError
from runner.planning.model import gguf_file
from runner.planning.model.profile import ModelProfile
from runner.planning.plan import DryRun, Plan

_MIB = 2**20
_TIMEOUT_S = 300
_CACHE = re.compile(r"llama_kv_cache: size = +([\d.]+) MiB \( *(\d+) cells")
_STATE = re.compile(r"llama_memory_recurrent: size = +([\d.]+) MiB")
_BUFFER = re.compile(r" (?:compute|output) buffer size = +([\d.]+) MiB")
_COPIED = re.compile(r"tensor (\S+) \(.*\) buffer type overridden to (?!CPU$)", re.MULTILINE)

_ALL = ".*"
"""An override that moves nothing in a run on the host, but llama.cpp then says where it puts each tensor."""


def dry_run(path: Path, plan: Plan) -> DryRun:
    """The bytes and cells that llama.cpp would allocate for ``plan`` on the model in ``path``.

    The log has two decimals of MiB. Where the exact formula agrees with them the formula's bytes are
    returned, else the log's, rounded up.

    On the host llama.cpp copies weights of some types into a layout for the CPU at hand, Q4_0 and Q4_K on
    x86-64 for example (``ggml_repack_get_optimal_repack_type``). A copy is read in place of the file's pages,
    which the system may take back, so that it costs nothing where the weights are resident. It cannot be paged
    itself: where the plan has mapped weights, the copies are counted with the compute buffers.

    Raises:
        EngineError: the engine refused the parameters or stopped the process; carries what it said.
    """
    pages = plan.weights == "mapped" and not plan.n_gpu_layers
    request = {
        "path": str(path),
        "n_gpu_layers": plan.n_gpu_layers,
        "on_host": (*(plan.spill.overrides if plan.spill is not None else ()), *((_ALL,) * pages)),
        "params": asdict(context_params(plan)),
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", "runner.engine.dryrun"],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise EngineError(f"the dry run of {path} did not end in {_TIMEOUT_S} s; try again") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        said = lines[-1].removeprefix("error: ") if lines else f"exit status {done.returncode}"
        raise EngineError(
            f"the dry run of {path.name} failed: {said}; another kv_mode or flash_attn may work"
        )
    lines = json.loads(done.stdout)["lines"]
    asked = parse(lines, plan)
    return replace(asked, compute_bytes=asked.compute_bytes + _copied_bytes(lines, path))


def parse(lines: list[str], plan: Plan) -> DryRun:
    """The sizes in llama.cpp's log ``lines``, made exact with the formulas of ``plan``'s model.

    Raises:
        EngineError: the log names no compute buffer, so its format is not the pinned version's.
    """
    text = "\n".join(lines)
    caches = [(float(size), int(cells)) for size, cells in _CACHE.findall(text)]
    buffers = [float(size) for size in _BUFFER.findall(text)]
    if not buffers:
        raise EngineError(
            "llama.cpp's log names no buffers; reinstall llama-cpp-python at the pinned version"
        )
    # A model with sliding layers logs two caches: the full layers' first.
    cells = caches[0][1] if caches else 0
    sliding = caches[1][1] if len(caches) > 1 else 0
    profile = plan.request.profile
    return DryRun(
        kv_bytes=sum(
            _exact(size, _kv_bytes(profile, plan, n, index)) for index, (size, n) in enumerate(caches)
        ),
        recurrent_bytes=sum(
            _exact(float(size), plan.n_seq_max * profile.state_bytes) for size in _STATE.findall(text)
        ),
        compute_bytes=sum(_exact(size, None) for size in buffers),
        cells=cells or plan.cells,
        sliding_cells=sliding,
    )


def _kv_bytes(profile: ModelProfile, plan: Plan, cells: int, index: int) -> int:
    full, sliding = (cells, 0) if index == 0 else (0, cells)
    return profile.kv_bytes(full, sliding, plan.kv_type_k, plan.kv_type_v, flash_attn=plan.flash_attn)


def _exact(logged_mib: float, formula: int | None) -> int:
    """``formula`` where it prints as ``logged_mib``, else the log's figure rounded up; in bytes."""
    # The log's sum is a C float: 24 bits of it are good.
    slack = 0.005 + logged_mib * 2**-22
    if formula is not None and abs(formula / _MIB - logged_mib) <= slack:
        return formula
    return math.ceil((logged_mib + slack) * _MIB)


def _copied_bytes(lines: Sequence[str], path: Path) -> int:
    """Bytes of the weights that ``lines`` put into a buffer other than the file's mapping."""
    names = _COPIED.findall("\n".join(lines))
    if not names:
        return 0
    # A split model's parts lie beside the first one.
    parts = path.parent.glob(glob.escape(path.name).replace("-00001-of-", "-?????-of-"))
    sizes = {name: size for part in parts for name, size in gguf_file.read(part).tensors.items()}
    return sum(sizes[name] for name in names)


class LogLines(logging.Handler):
    """A context manager that keeps the lines in which llama.cpp names a size or a tensor's place."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep ``record``'s line, if it is one of them."""
        line = record.getMessage()
        if " size = " in line or " buffer type overridden to " in line:
            self.lines.append(line)

    def __enter__(self) -> LogLines:
        log = logging.getLogger("kvswarm.llama")
        self._before = log.level, log.propagate
        log.setLevel(logging.DEBUG)
        log.propagate = False
        log.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        log = logging.getLogger("kvswarm.llama")
        log.removeHandler(self)
        level, log.propagate = self._before
        log.setLevel(level)


def _main() -> None:
    request: dict[str, Any] = json.load(sys.stdin)
    with LogLines() as log:
        weights = Weights(
            Path(request["path"]),
            n_gpu_layers=request["n_gpu_layers"],
            on_host=request["on_host"],
            no_alloc=True,
        )
        context = Context(weights, ContextParams(**request["params"]))
        context.close()
        weights.close()
    json.dump({"lines": log.lines}, sys.stdout)


if __name__ == "__main__":
    from runner.errors import KvswarmError

    try:
        _main()
    except KvswarmError as error:
        sys.exit(f"error: {error}")
