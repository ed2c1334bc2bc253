"""What a job leaves behind when it is killed, for real."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runner.tables import TableWriter, load

WRITES_UNTIL_KILLED = """
import sys, threading
from pathlib import Path
from runner.tables import TableWriter

writer = TableWriter(Path(sys.argv[1]))
writer.append("jobs", job_id="j", status="running")

def trace():
    t = 0
    while True:
        writer.append("traces", job_id="j", process="runner", t_s=t / 10, rss_bytes=t)
        t += 1

threading.Thread(target=trace, daemon=True).start()
for worker in range(10**9):
    writer.append("generations", job_id="j", prompt_id="p", worker=worker, status="ok", text="x" * 3000)
    print(worker, flush=True)
"""

FILLS_UP = """
import resource, sys
from pathlib import Path
from runner.errors import OutputError
from runner.tables import TableWriter

writer = TableWriter(Path(sys.argv[1]))
row = dict(job_id="j", prompt_id="p", status="ok", text="x" * 900)
resource.setrlimit(resource.RLIMIT_FSIZE, (4500, resource.RLIM_INFINITY))
for worker in range(10):
    try:
        writer.append("generations", worker=worker, **row)
    except OutputError as error:
        print(worker, error, flush=True)
        break
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
writer.append("generations", worker=100, **row)
import os
os.kill(os.getpid(), 9)
"""


def start(program: str, folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE, text=True)


def kill_after(rows: int, folder: Path) -> int:
    """Kill a writer with -9 after about ``rows`` rows; returns the last row that it said was written."""
    process = start(WRITES_UNTIL_KILLED, folder)
    assert process.stdout is not None
    for _ in range(rows):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    said = process.stdout.read().split("\n")[:-1]
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    return int(said[-1]) if said else rows - 1


@pytest.mark.filterwarnings("ignore:.*damaged line")
@pytest.mark.parametrize("rows", [1, 7, 60])
def test_kill_9_loses_no_row_that_was_written(rows: int, tmp_path: Path) -> None:
    last = kill_after(rows, tmp_path)
    tables = load(tmp_path)
    found = list(tables.generations.worker)
    assert found == list(range(len(found))) and len(found) > last
    assert list(tables.jobs.status) == ["running"]
    assert len(tables.traces) > 0

    with TableWriter(tmp_path) as writer:
        writer.append("generations", job_id="j", prompt_id="q", worker=0, status="ok")
        writer.append("jobs", job_id="j", status="done")
    tables = load(tmp_path)
    assert list(tables.generations.worker) == [*found, 0]
    assert list(tables.jobs.status) == ["done"]
    assert not list((tmp_path / "tables").glob("*.jsonl"))


def test_a_row_that_found_no_room_does_not_swallow_the_next(tmp_path: Path) -> None:
    process = start(FILLS_UP, tmp_path)
    said, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL
    stopped, message = said.split(" ", 1)
    assert int(stopped) > 0 and "what was written is kept" in message
    lines = (tmp_path / "tables" / "generations.jsonl").read_text().splitlines()
    assert [json.loads(line)["worker"] for line in lines] == [*range(int(stopped)), 100]
    assert list(load(tmp_path).generations.worker) == [*range(int(stopped)), 100]


def test_a_folder_is_free_again_after_its_writer_was_killed(tmp_path: Path) -> None:
    kill_after(1, tmp_path)
    TableWriter(tmp_path).close()
    assert (tmp_path / "tables" / ".lock").read_text() == f"{os.getpid()}\n"
