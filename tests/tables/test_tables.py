import errno
import json
import math
import shutil
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.errors import OutputError
from runner.tables import KEYS, SCHEMAS, TableWriter, load

NASTY = 'emoji \U0001f41d, "quotes", line\nbreak, \r\n, \u2028 and \u2029, \x00, \x85, tab\t, ﷽'


def generation(worker: int, **more: Any) -> dict[str, Any]:
    return {"job_id": "j", "prompt_id": "p", "worker": worker, "status": "ok", **more}


def vote(**more: Any) -> dict[str, Any]:
    return {
        "job_id": "j", "prompt_id": "p", "tally_id": "t", "rule": "majority", "votes": 1, "workers": 2,
        "tie": False, "abstained": 0, **more,
    }  # fmt: skip


def write(folder: Path, *rows: dict[str, Any], table: str = "generations") -> None:
    with TableWriter(folder) as writer:
        for row in rows:
            writer.append(table, **row)


def journal(folder: Path, table: str = "generations") -> Path:
    return folder / "tables" / f"{table}.jsonl"


def workers(folder: Path) -> list[int]:
    return list(load(folder).generations.worker)


def quiet_workers(folder: Path) -> list[int]:
    """The workers in ``folder``, where not a single warning is allowed."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return workers(folder)


def test_rows_are_readable_before_and_after_the_job_ends(tmp_path: Path) -> None:
    with TableWriter(tmp_path) as writer:
        writer.append("generations", **generation(0, text="one"))
        assert list(load(tmp_path).generations.text) == ["one"]
        assert json.loads(journal(tmp_path).read_text())["text"] == "one"
    assert list(load(tmp_path).generations.text) == ["one"]
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == [".lock", "generations.parquet"]
    stored = pq.read_schema(tmp_path / "tables" / "generations.parquet")
    assert stored.field("text").metadata[b"description"] == b"The answer as generated"


def test_nasty_text_comes_back_as_it_was(tmp_path: Path) -> None:
    with TableWriter(tmp_path) as writer:
        writer.append("generations", **generation(0, text=NASTY))
        assert load(tmp_path).generations.text[0] == NASTY
    assert load(tmp_path).generations.text[0] == NASTY


def test_surrogates_are_joined_or_replaced(tmp_path: Path) -> None:
    write(tmp_path, generation(0, text="pair \ud83d\udc1d, lone \udcff."))
    assert load(tmp_path).generations.text[0] == "pair \U0001f41d, lone \ufffd."


def test_types_survive_nulls(tmp_path: Path) -> None:
    write(
        tmp_path,
        generation(0, seed=2**64 - 1, generated_tokens=2**53 + 1, mean_logprob=-0.5, answer="7"),
        generation(1),
        generation(np.int64(2), mean_logprob=math.nan, seconds=np.float32(0.5), seed=np.uint64(3)),
        generation(3, mean_logprob=-math.inf, seconds=2),
    )
    frame = load(tmp_path).generations
    assert list(frame.seed) == [2**64 - 1, pd.NA, 3, pd.NA]
    assert list(frame.generated_tokens[:2]) == [2**53 + 1, pd.NA]
    assert frame.worker.dtype == "int64"
    assert frame.generated_tokens.dtype == "Int64"
    assert list(frame.answer) == ["7", None, None, None]
    assert frame.mean_logprob[0] == -0.5 and frame.mean_logprob[1:3].isna().all()
    assert frame.mean_logprob[3] == -math.inf
    assert frame.seconds[2] == 0.5 and frame.seconds[3] == 2.0


def test_a_boolean_may_be_unknown(tmp_path: Path) -> None:
    rows = [vote(prompt_id=f"p{i}", correct=known) for i, known in enumerate([True, None, np.bool_(False)])]
    write(tmp_path, *rows, table="votes")
    frame = load(tmp_path).votes
    assert list(frame.correct) == [True, pd.NA, False]
    assert frame.correct.mean() == 0.5
    assert frame.correct.dtype == "boolean" and frame.tie.dtype == "bool"


def test_a_list_of_floats_comes_back_as_an_array(tmp_path: Path) -> None:
    row = {"job_id": "j", "tokens": 2, "status": "ok"}
    with TableWriter(tmp_path) as writer:
        writer.append("scores", **row, prompt_id="a", token_nll=np.array([0.5, 2.0], np.float32))
        writer.append("scores", **row, prompt_id="b", token_nll=(1, math.nan))
        writer.append("scores", **row, prompt_id="c", token_nll=[])
        writer.append("scores", **row, prompt_id="d")
        with pytest.raises(ValueError, match="token_nll"):
            writer.append("scores", **row, prompt_id="e", token_nll=["low"])
        with pytest.raises(ValueError, match="token_nll"):
            writer.append("scores", **row, prompt_id="e", token_nll=0.5)
        before = load(tmp_path).scores
    for frame in (before, load(tmp_path).scores):
        assert [None if cell is None else cell.dtype for cell in frame.token_nll] == [np.float64] * 3 + [None]
        np.testing.assert_array_equal(np.concatenate(list(frame.token_nll[:3])), [0.5, 2.0, 1.0, np.nan])


@pytest.mark.parametrize("table", SCHEMAS)
def test_an_empty_table_has_the_columns_and_dtypes_of_a_full_one(table: str, tmp_path: Path) -> None:
    empty = getattr(load(tmp_path), table)
    values = {
        pa.string(): "x", pa.int64(): 1, pa.uint64(): 1, pa.float64(): 1.0, pa.bool_(): True,
        pa.list_(pa.float64()): [1.0],
    }  # fmt: skip
    write(tmp_path, {field.name: values[field.type] for field in SCHEMAS[table]}, table=table)
    full = getattr(load(tmp_path), table)
    assert list(empty.columns) == SCHEMAS[table].names
    assert len(full) == 1 and dict(empty.dtypes) == dict(full.dtypes)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (generation(0, colour="red"), "no column colour"),
        (generation("0"), "worker"),  # type: ignore[arg-type]
        (generation(True), "worker"),
        (generation(0.0), "worker"),  # type: ignore[arg-type]
        (generation(2**63), "worker"),
        (generation(0, seed=-1), "seed"),
        (generation(0, text=b"bytes"), "text"),
        (generation(0, mean_logprob="low"), "mean_logprob"),
        (generation(0, mean_logprob=10**400), "mean_logprob"),
        ({"job_id": "j", "prompt_id": "p", "status": "ok"}, "worker"),
        (generation(0, job_id=None), "job_id"),
    ],
)
def test_a_wrong_row_is_a_programming_error(row: dict[str, Any], said: str, tmp_path: Path) -> None:
    with TableWriter(tmp_path) as writer:
        with pytest.raises(ValueError, match=said):
            writer.append("generations", **row)
        with pytest.raises(ValueError, match="is no table"):
            writer.append("opinions", job_id="j")
    assert workers(tmp_path) == []


def test_a_closed_writer_takes_no_rows(tmp_path: Path) -> None:
    writer = TableWriter(tmp_path)
    writer.append("generations", **generation(0))
    writer.close()
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.append("generations", **generation(1))
    assert workers(tmp_path) == [0]


def test_the_last_row_of_a_key_counts_within_and_across_runs(tmp_path: Path) -> None:
    write(tmp_path, generation(0, text="a"), generation(1, text="b"), generation(0, text="c", seed=1))
    assert list(load(tmp_path).generations.text) == ["c", "b"]
    with TableWriter(tmp_path) as writer:
        writer.append("generations", **generation(1, text="d"))
        assert list(load(tmp_path).generations.text) == ["c", "d"]
    frame = load(tmp_path).generations
    assert list(frame.text) == ["c", "d"] and list(frame.seed) == [1, pd.NA]


def test_rows_come_in_key_order(tmp_path: Path) -> None:
    write(tmp_path / "b", generation(2, job_id="k"), generation(0, job_id="k"))
    write(tmp_path / "a", generation(10), generation(9), generation(1, prompt_id="a"))
    frame = load(tmp_path).generations
    order = [tuple(row) for row in frame[list(KEYS["generations"])].itertuples(index=False)]
    assert order == [("j", "a", 1), ("j", "p", 9), ("j", "p", 10), ("k", "p", 0), ("k", "p", 2)]


def test_load_starts_anywhere_above_or_at_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = tmp_path / "sweep" / "0"
    write(job, generation(0))
    (tmp_path / "tables").mkdir()
    for folder in (tmp_path, job, job / "tables"):
        assert workers(folder) == [0]
        assert list(load(str(folder)).generations.worker) == [0]
    monkeypatch.chdir(job / "tables")
    assert workers(Path()) == [0]


def test_load_of_nothing_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="no such folder"):
        load(tmp_path / "gone")
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="is a file"):
        load(tmp_path / "file")


@pytest.mark.parametrize(
    "torn", [b'{"job_id":"j","prompt_id":"p","wor', b'{"job_id":"j"}', b"\x00\x00", b"17"]
)
def test_a_torn_last_line_is_dropped_with_a_warning_and_healed(torn: bytes, tmp_path: Path) -> None:
    writer = TableWriter(tmp_path)
    writer.append("generations", **generation(0))
    kept = journal(tmp_path).read_bytes()
    writer.close()
    shutil.rmtree(tmp_path / "tables")
    (tmp_path / "tables").mkdir()
    journal(tmp_path).write_bytes(kept + torn)
    with pytest.warns(UserWarning, match=r"generations\.jsonl: 1 damaged") as caught:
        assert workers(tmp_path) == [0]
    assert caught[0].filename == __file__
    write(tmp_path, generation(1))
    assert quiet_workers(tmp_path) == [0, 1]


def test_a_whole_row_without_its_line_end_is_no_torn_line(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    journal(tmp_path).write_text(json.dumps(generation(0)))
    assert quiet_workers(tmp_path) == [0]
    write(tmp_path, generation(1))
    assert quiet_workers(tmp_path) == [0, 1]


def test_damage_inside_a_journal_costs_that_line_alone(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    lines = [
        json.dumps(generation(0)), "{]", json.dumps(generation(1, seed="x")), json.dumps(generation(2)),
        json.dumps(generation(3, colour="red")),
    ]  # fmt: skip
    journal(tmp_path).write_text("\n".join(lines) + "\n")
    with pytest.warns(UserWarning, match="2 damaged"):
        assert workers(tmp_path) == [0, 2, 3]


def test_a_crash_between_the_steps_of_compaction_changes_nothing(tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    writer = TableWriter(tmp_path)
    for worker in range(3):
        writer.append("generations", **generation(worker, text=f"text {worker}"))
    before = journal(tmp_path).read_bytes()
    writer.close()
    compacted = (tables / "generations.parquet").read_bytes()
    states: dict[str, dict[str, bytes]] = {
        "half a part file": {"generations.jsonl": before, "generations.parquet.part": compacted[:100]},
        "a part file": {"generations.jsonl": before, "generations.parquet.part": compacted},
        "renamed, journal still there": {"generations.jsonl": before, "generations.parquet": compacted},
    }
    for state, files in states.items():
        shutil.rmtree(tables)
        tables.mkdir()
        for name, content in files.items():
            (tables / name).write_bytes(content)
        assert quiet_workers(tmp_path) == [0, 1, 2], state
        write(tmp_path, generation(3))
        assert quiet_workers(tmp_path) == [0, 1, 2, 3], state
        assert sorted(path.name for path in tables.iterdir()) == [".lock", "generations.parquet"], state


def test_two_writers_refuse_to_mix(tmp_path: Path) -> None:
    with TableWriter(tmp_path) as writer:
        writer.append("generations", **generation(0))
        with pytest.raises(OutputError, match=r"another run \(process \d+\) is writing here"):
            TableWriter(tmp_path)
        writer.append("generations", **generation(1))
    write(tmp_path, generation(2))
    assert workers(tmp_path) == [0, 1, 2]


@pytest.mark.parametrize("in_the_way", ["", "tables"])
def test_a_file_in_place_of_the_folder_is_one_line(in_the_way: str, tmp_path: Path) -> None:
    job = tmp_path / "job"
    if in_the_way:
        job.mkdir()
    (job / in_the_way).touch()
    with pytest.raises(OutputError, match="a file is where the output folder should be"):
        TableWriter(job)
    assert (job / in_the_way).is_file()


def test_a_folder_that_nobody_may_write_is_one_line() -> None:
    with pytest.raises(OutputError, match="choose another output folder") as caught:
        TableWriter(Path("/proc/1/job"))
    assert "\n" not in str(caught.value)


def test_a_full_disk_stops_cleanly_and_keeps_what_was_written(tmp_path: Path) -> None:
    full = Path("/dev/full")
    (tmp_path / "tables").mkdir()
    journal(tmp_path, "votes").symlink_to(full)
    with TableWriter(tmp_path) as writer:
        writer.append("generations", **generation(0))
        with pytest.raises(OutputError, match=r"votes\.jsonl: no room on the disk; free some") as caught:
            writer.append("votes", **vote())
        assert "\n" not in str(caught.value)
        assert isinstance(caught.value.__cause__, OSError) and caught.value.__cause__.errno == errno.ENOSPC
        writer.append("generations", **generation(1))
    assert quiet_workers(tmp_path) == [0, 1]


def test_a_compaction_without_room_leaves_the_journal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tables = tmp_path / "tables"
    tables.mkdir()
    (tables / "generations.parquet.part").symlink_to("/dev/full")
    with pytest.raises(OutputError, match="no room on the disk"):
        write(tmp_path, generation(0))
    assert journal(tmp_path).exists() and quiet_workers(tmp_path) == [0]

    (tables / "generations.parquet.part").symlink_to("/dev/full")
    with pytest.raises(KeyboardInterrupt), TableWriter(tmp_path) as writer:
        writer.append("generations", **generation(1))
        raise KeyboardInterrupt  # what broke first is what is heard
    assert "no room on the disk" in caplog.text
    write(tmp_path, generation(2))
    assert quiet_workers(tmp_path) == [0, 1, 2]


def test_a_damaged_parquet_is_named_and_never_overwritten(tmp_path: Path) -> None:
    write(tmp_path / "good", generation(0))
    write(tmp_path / "bad", generation(1))
    parquet = tmp_path / "bad" / "tables" / "generations.parquet"
    parquet.write_bytes(parquet.read_bytes()[:50])
    with pytest.warns(UserWarning, match=r"bad/tables/generations\.parquet: not readable"):
        assert workers(tmp_path) == [0]
    with pytest.raises(OutputError, match="move it away"):
        TableWriter(tmp_path / "bad")
    assert len(parquet.read_bytes()) == 50
    parquet.unlink()
    write(tmp_path / "bad", generation(2))  # and the failed attempt let the folder go
    assert workers(tmp_path) == [0, 2]


def test_tables_of_another_version_are_read_as_far_as_they_are_known(tmp_path: Path) -> None:
    write(tmp_path, generation(0, text="a", seed=5))
    parquet = tmp_path / "tables" / "generations.parquet"
    pq.write_table(pq.read_table(parquet).drop_columns(["seed", "seconds"]), parquet)
    frame = load(tmp_path).generations
    assert frame.text[0] == "a" and frame.seed.isna().all() and frame.seed.dtype == "UInt64"

    pq.write_table(pq.read_table(parquet).append_column("entropy", pa.array([0.5])), parquet)
    with pytest.warns(UserWarning, match="newer kvswarm: entropy"):
        assert list(load(tmp_path).generations.columns) == SCHEMAS["generations"].names
    with pytest.raises(OutputError, match=r"entropy.*update kvswarm"):
        TableWriter(tmp_path)


def test_threads_append_without_tearing_each_others_lines(tmp_path: Path) -> None:
    def rows(thread: int) -> None:
        for i in range(200):
            writer.append("traces", job_id="j", process=f"thread {thread}", t_s=i / 10, phase="x" * 5000)
            if i % 20 == 0:
                writer.append("generations", **generation(thread * 1000 + i))

    with TableWriter(tmp_path) as writer:
        threads = [threading.Thread(target=rows, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(load(tmp_path).traces) == 1600
    tables = load(tmp_path)
    assert len(tables.traces) == 1600 and len(tables.generations) == 80
    assert tables.traces.phase.str.len().eq(5000).all()


def test_the_repr_is_one_line(tmp_path: Path) -> None:
    write(tmp_path, generation(0))
    assert repr(load(tmp_path)) == (
        "Tables(jobs=0, plans=0, plan_steps=0, prompts=0, stages=0, excerpts=0, generations=1, votes=0, "
        "growth=0, evictions=0, survivors=0, scores=0, traces=0)"
    )


def test_a_thousand_generations_and_a_hundred_folders_load_quickly(tmp_path: Path) -> None:
    for i in range(100):
        folder = tmp_path / f"{i}" / "tables"
        folder.mkdir(parents=True)
        rows = [generation(worker, job_id=f"{i}", text="word " * 50) for worker in range(10)]
        journal(tmp_path / f"{i}").write_text("".join(json.dumps(row) + "\n" for row in rows))
        if i % 2:
            TableWriter(tmp_path / f"{i}").close()
    load(tmp_path)
    started = time.process_time()
    assert len(load(tmp_path).generations) == 1000
    assert time.process_time() - started < 1


def columns(table: str) -> st.SearchStrategy[dict[str, Any]]:
    kinds: dict[pa.DataType, st.SearchStrategy[Any]] = {
        pa.string(): st.text(st.characters(exclude_categories=["Cs"])),
        pa.int64(): st.integers(-(2**63), 2**63 - 1),
        pa.uint64(): st.integers(0, 2**64 - 1),
        pa.float64(): st.floats(allow_nan=False),
        pa.bool_(): st.booleans(),
    }
    return st.fixed_dictionaries(
        {field.name: kinds[field.type] for field in SCHEMAS[table] if not field.nullable},
        optional={field.name: st.none() | kinds[field.type] for field in SCHEMAS[table] if field.nullable},
    )


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(columns("generations"), max_size=4), st.lists(columns("votes"), max_size=3))
def test_what_is_written_is_what_is_read(
    tmp_path_factory: pytest.TempPathFactory, generations: list[dict[str, Any]], votes: list[dict[str, Any]]
) -> None:
    folder = tmp_path_factory.mktemp("round")
    written = {"generations": generations, "votes": votes}
    with TableWriter(folder) as writer:
        for table, rows in written.items():
            for row in rows:
                writer.append(table, **row)
        running = load(folder)
    ended = load(folder)
    for table, rows in written.items():
        last = {tuple(row[key] for key in KEYS[table]): row for row in rows}
        expected = [{name: row.get(name) for name in SCHEMAS[table].names} for _, row in sorted(last.items())]
        for tables in (running, ended):
            frame = getattr(tables, table).astype(object)
            assert frame.where(frame.notna(), None).to_dict("records") == expected


def run_of(folder: Path, at: str, status: str, tally: str, text: str) -> None:
    """What one run of job j leaves in ``folder``."""
    with TableWriter(folder) as writer:
        writer.append("jobs", job_id="j", status=status, started_at=at)
        writer.append("generations", **generation(0, text=text))
        writer.append("votes", **vote(tally_id=tally))
        writer.append("traces", job_id="j", process=at, t_s=0.0)


def test_a_job_run_twice_is_one_job(tmp_path: Path) -> None:
    """Its votes by other rules are all there; its traces are those of one run, the latest that finished."""
    run_of(tmp_path / "c", "10:00", "done", "majority", "whole")
    run_of(tmp_path / "a", "11:00", "done", "similarity", "whole")
    run_of(tmp_path / "b", "12:00", "interrupted", "majority", "cut sho")
    t = load(tmp_path)
    assert t.jobs[["started_at", "status"]].to_numpy().tolist() == [["11:00", "done"]]
    assert t.generations.text.tolist() == ["whole"]
    assert t.votes.tally_id.tolist() == ["majority", "similarity"]
    assert t.traces.process.tolist() == ["11:00"]
