"""Planned bytes against the pages that a real run has in memory, region by region.

Each run is a process of its own: load the weights, create the context as planned, prefill about 4,000 tokens and
let every worker answer. Which pages belong to what follows from where the graph's tensors lie; whether they are
resident is read from ``/proc/self/pagemap``. ``pytest -s`` prints the figures.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import runner
from planned import MIB, plan
from tensors import CELLS, STATES, WEIGHTS, Seen, Span
from tiny_models import write_qwen35moe

from runner.config import SamplingConfig
from runner.engine.bindings import lib
from runner.engine.context import Context, context_params
from runner.engine.dryrun import dry_run
from runner.engine.scheduler import Scheduler
from runner.engine.sequence import Group
from runner.engine.weights import Weights
from runner.planning.memory import PROCESS_BYTES
from runner.planning.model.gguf_header import from_gguf
from runner.planning.plan import Plan
from runner.planning.sequences import sequences_needed
from runner.tables import load

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which pages are resident")

PAGE = os.sysconf("SC_PAGESIZE")
PROMPT_TOKENS = 4000
ANSWER_TOKENS = 16
THREADS = 2
WORDS = "The quick brown fox jumps over the lazy dog and looks for the river where the old mill stood. "


def planned(path: Path, workers: int) -> Plan:
    profile = from_gguf(path)
    n_seq_max = sequences_needed(workers, 1, documents=False, sliding=profile.sliding_window > 0)
    return plan(profile, prefix=PROMPT_TOKENS, suffix=ANSWER_TOKENS, workers=workers, n_seq_max=n_seq_max)


# -- in the process that is measured ------------------------------------------------------------------------


def measure(path: Path, workers: int) -> dict[str, int]:
    """Bytes in memory, by region, after a run."""
    made, seen = planned(path, workers), Seen()
    before = _status()
    weights = Weights(path)
    context = Context(weights, context_params(replace(made, n_threads=THREADS)), seen)
    text = WORDS * PROMPT_TOKENS
    tokens = weights.tokenize(text, add_special=True, parse_special=False)[:PROMPT_TOKENS]
    scheduler = Scheduler(weights, context, SamplingConfig(max_tokens=ANSWER_TOKENS))
    group = Group("p", (), tuple(tokens), tuple(range(workers)))
    for _, generations in scheduler.run([group]):
        assert len(generations) == workers
    after = _status()

    tensors = seen.spans(WEIGHTS)
    file = _mapping(path)
    in_file = [span for span in tensors if any(m.address <= span.address < m.address + m.size for m in file)]
    copies = sorted(set(tensors) - set(in_file))
    buffer = sorted(set(seen.spans(".*")) - set(tensors) - set(seen.spans(f"{CELLS}|{STATES}")))
    start, end = buffer[0].address, max(span.address + span.size for span in buffer)
    logits = ctypes.cast(lib.llama_get_logits(context.handle), ctypes.c_void_p).value or 0
    return {
        "tensor_bytes": sum(span.size for span in tensors),
        "copied_bytes": sum(span.size for span in copies),
        "weights": _resident(tensors),
        "copies": _resident(copies),
        "file": _resident(file),
        "file_in_use": _resident(in_file),
        "kv": _resident(seen.spans(CELLS)),
        "recurrent": _resident(seen.spans(STATES)),
        "compute": _resident([Span(start, end - start)]),
        "outputs": _resident([Span(logits, 4 * made.n_seq_max * weights.n_vocab)]),
        "before": before["VmRSS"],
        "after": after["VmRSS"],
    }


def _status() -> dict[str, int]:
    """The sizes in ``/proc/self/status``, in bytes."""
    sizes = re.findall(r"^(\w+):\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return {name: 1024 * int(size) for name, size in sizes}


def _mapping(path: Path) -> list[Span]:
    """Where the file at ``path`` is mapped."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(f" {path.resolve()}"):
            start, end = (int(bound, 16) for bound in line.split()[0].split("-"))
            found.append(Span(start, end - start))
    return found


def _resident(spans: Sequence[Span]) -> int:
    """Bytes of the pages that ``spans`` touch and that are in memory, each page once."""
    if not spans:
        return 0
    ranges = [np.arange(s.address // PAGE, -(-(s.address + s.size) // PAGE)) for s in spans if s.size]
    pages = np.unique(np.concatenate(ranges))
    runs = np.split(pages, np.flatnonzero(np.diff(pages) > 1) + 1)
    present = 0
    with Path("/proc/self/pagemap").open("rb") as pagemap:
        for run in runs:
            first = int(run[0])
            pagemap.seek(8 * first)
            entries = np.frombuffer(pagemap.read(8 * len(run)), np.uint64)
            present += int((entries >> np.uint64(63)).sum())
    return present * PAGE


# -- what the figures must be -------------------------------------------------------------------------------


def measured(path: Path, workers: int) -> dict[str, int]:
    tests = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, __file__, str(path), str(workers)],
        capture_output=True, text=True, timeout=550, env=os.environ | {"PYTHONPATH": tests},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures: dict[str, int] = json.loads(done.stdout)
    return figures


def report(path: Path, workers: int, made: Plan, found: dict[str, int]) -> None:
    """The regions, the growth of the whole process, and what no region explains, in MiB."""
    growth = found["after"] - found["before"]
    known = sum(found[part] for part in ("file", "copies", "kv", "recurrent", "compute", "outputs"))
    held = made.weights_bytes + made.kv_bytes + made.recurrent_bytes
    figures = {
        "weights": (found["weights"], made.weights_bytes),
        "kv": (found["kv"], made.kv_bytes),
        "recurrent": (found["recurrent"], made.recurrent_bytes),
        "compute and outputs": (found["compute"] + found["outputs"], made.compute_bytes),
        "pages of copied weights": (found["file"] - found["file_in_use"], found["copied_bytes"]),
        "vocabulary, scratch and the rest": (growth - known, made.overhead_bytes),
        "growth, of weights and caches": (growth, held),
        "growth, of all but the process": (growth, made.total_bytes - PROCESS_BYTES),
    }
    print(f"\n{path.stem}, {workers} workers, {made.cells} cells (MiB in memory, planned)")
    for name, (resident, bytes_planned) in figures.items():
        print(f"  {name:34}{resident / MIB:10.2f}{bytes_planned / MIB:10.2f}")
    print(f"  in regions / planned {(found['weights'] + found['kv'] + found['recurrent']) / held:.4f}")


def accounts(path: Path, workers: int) -> None:
    made, found = planned(path, workers), measured(path, workers)
    report(path, workers, made, found)
    # Every tensor that the graph reads, wherever it was put, and nothing twice.
    assert found["tensor_bytes"] == made.weights_bytes
    held = made.weights_bytes + made.kv_bytes + made.recurrent_bytes
    regions = found["weights"] + found["kv"] + found["recurrent"]
    assert regions == pytest.approx(held, rel=0.05)
    assert found["weights"] == pytest.approx(made.weights_bytes, rel=0.05)
    assert found["kv"] == pytest.approx(made.kv_bytes, rel=0.05)
    # What was copied into a layout for this processor stays mapped as well: pages that nothing reads again.
    unused = found["file"] - found["file_in_use"]
    assert unused == pytest.approx(found["copied_bytes"], abs=MIB)
    paged = dry_run(path, replace(made, weights="mapped"))
    assert paged.compute_bytes - dry_run(path, made).compute_bytes == found["copied_bytes"]
    # Buffers are reserved whole and touched in part.
    assert 0 < found["compute"] + found["outputs"] <= made.compute_bytes


@pytest.mark.parametrize("workers", [1, 8])
def test_smollm2(smollm2: Path, workers: int) -> None:
    accounts(smollm2, workers)


@pytest.mark.parametrize("workers", [1, 8])
def test_gemma3(gemma3: Path, workers: int) -> None:
    accounts(gemma3, workers)


def hybrid(path: Path) -> Path:
    return write_qwen35moe(
        path, n_embd=512, n_head=4, head_dim=128, d_state=128, dt_rank=8, n_group=4, n_ff_expert=128
    )


@pytest.mark.parametrize("workers", [1, 8])
def test_hybrid(tmp_path: Path, workers: int) -> None:
    accounts(hybrid(tmp_path / "hybrid.gguf"), workers)


def below_its_plan(folder: Path, *overrides: str) -> None:
    """A whole job's process, from its tables."""
    done = runner(
        folder, *overrides, f"n_threads={THREADS}", "prompts.count=1", "sampling.max_tokens=16", "trace.hz=20"
    )
    assert done.returncode == 0, done.stderr
    tables = load(folder / "outputs")
    [peak], [total] = tables.jobs["peak_rss_bytes"], tables.plans["total_bytes"]
    print(f"\n{' '.join(overrides)}: peak {peak / MIB:.1f} MiB, plan {total / MIB:.1f}, {total / peak:.3f}")
    assert 0 < peak <= total


@pytest.mark.parametrize("workers", [1, 8])
@pytest.mark.parametrize("model", ["smollm2", "gemma3_270m"])
def test_a_jobs_process_stays_below_its_plan(tmp_path: Path, model: str, workers: int) -> None:
    below_its_plan(tmp_path, f"model={model}", f"swarm_size={workers}", "prompts.tokens=1000")


@pytest.mark.parametrize("n_ubatch", [512, 2048])
def test_a_hybrids_graphs_are_planned_for(tmp_path: Path, n_ubatch: int) -> None:
    """They have nodes for 40 times the micro-batch, whatever the model: 100 MiB at 2,048 tokens."""
    path = hybrid(tmp_path / "hybrid.gguf")
    model = ("model=custom", f"model.path={path}", f"n_ubatch={n_ubatch}")
    below_its_plan(tmp_path, *model, "swarm_size=1", "prompts.tokens=2500")


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), int(sys.argv[2]))))
