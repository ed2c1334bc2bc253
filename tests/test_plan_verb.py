"""``python -m runner.plan`` as a person types it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import hydra
import pandas as pd
import pytest
from commands import one_line, runner
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from runner import cli, grid
from runner.config import JobConfig, defaults
from runner.parsing import conf_dir
from runner.plan import keep, plan_grid
from runner.planning.resolve import resolve
from runner.tables import load


def planned(folder: Path, *arguments: str, status: int = 0) -> str:
    """What the command prints."""
    done = runner(folder, *arguments, module="runner.plan")
    assert done.returncode == status, done.stderr
    return done.stdout


def rows(folder: Path, table: str = "plans") -> pd.DataFrame:
    [path] = folder.rglob(f"{table}.parquet")
    return pd.read_parquet(path)


@pytest.fixture
def composer() -> Iterator[None]:
    """Hydra as the command line sets it up."""
    ConfigStore.instance().store(name="schema", node=defaults())
    OmegaConf.register_new_resolver("folder_name", cli.folder_name, replace=True)
    yield
    hydra.core.global_hydra.GlobalHydra.instance().clear()


def test_a_plan_says_what_goes_where_and_is_kept(tmp_path: Path) -> None:
    said = planned(tmp_path, "model=qwen35b", "hardware=cpu_32gb", "kv_mode=q8_0")
    assert said.startswith("qwen35b on cpu_32gb, kv_mode=q8_0, 5 workers: fits\n")
    assert "recurrent     395,182,080  376.9 MiB  formula" in said
    assert "llama-server -hf unsloth/Qwen3.5-35B-A3B-GGUF" in said
    [plan] = rows(tmp_path).to_dict("records")
    assert (plan["status"], plan["weights"], plan["kv_type_k"]) == ("fits", "resident", "q8_0")
    assert plan["recurrent_bytes"] == 395_182_080
    assert plan["llama_server"] in said
    assert len(load(tmp_path).plans) == 1


def test_a_refusal_lists_the_remedies_and_apply_takes_them(tmp_path: Path) -> None:
    tight = ("model=qwen35b", "hardware=rtx4060ti_16gb")
    said = planned(tmp_path / "no", *tight, status=2)
    assert "does not fit" in said and "GiB of VRAM are missing" in said
    steps = rows(tmp_path / "no", "plan_steps")
    assert list(steps.override[steps.sufficient]) == ["spill.weights=auto"]
    assert not steps.applied.any()
    assert "fits with: spill.weights=auto" in said

    said = planned(tmp_path / "yes", *tight, "plan.apply=true")
    assert "GiB in host memory" in said and "--n-cpu-moe" in said
    assert rows(tmp_path / "yes").status[0] == "spilled"
    steps = rows(tmp_path / "yes", "plan_steps")
    assert list(steps.override[steps.applied]) == ["spill.weights=auto"]


@pytest.fixture(autouse=True)
def folders(tmp_path: Path) -> None:
    for name in ("no", "yes"):
        (tmp_path / name).mkdir()


def test_a_grid_is_one_table_with_every_cell(tmp_path: Path) -> None:
    axes = ("model=smollm2,qwen35b", "hardware=cpu_8gb,rtx4060ti_16gb", "kv_mode=f16,k8v4", "swarm_size=1,9")
    said = planned(tmp_path, "-m", *axes)
    assert said.splitlines()[0].split()[:4] == ["model", "hardware", "kv_mode", "workers"]
    assert said.endswith("12 of 16 can run; sizes in GiB\n")
    kept = rows(tmp_path)
    assert len(kept) == 16 and kept.job_id.is_unique
    refused = kept[kept.status == "refused"]
    assert set(refused.model) == {"qwen35b"} and set(refused.hardware) == {"rtx4060ti_16gb"}
    assert (refused.missing_bytes > 0).all() and refused.reason.str.contains("missing").all()


def test_a_glob_is_every_option(tmp_path: Path) -> None:
    said = planned(tmp_path, "-m", "kv_mode=glob(*)", "hardware=cpu_8gb")
    options = sorted(path.stem for path in (conf_dir() / "kv_mode").glob("*.yaml"))
    assert sorted(rows(tmp_path).kv_mode) == options and len(options) > 3
    assert said.endswith(f"{len(options)} of {len(options)} can run; sizes in GiB\n")


def test_the_views_say_the_same(tmp_path: Path) -> None:
    axes = ("-m", "model=smollm2", "hardware=cpu_8gb", "swarm_size=1,3")
    told = json.loads(planned(tmp_path, *axes, "view=json"))
    assert [row["workers"] for row in told] == [1, 3]
    assert told[0]["overrides"] == ["swarm_size.workers=1"]
    lines = planned(tmp_path, *axes, "view=markdown").splitlines()
    assert lines[0].startswith("| model | hardware | kv_mode | workers | window |")
    assert len(lines) == 4 and lines[1].count("---") == lines[0].count("|") - 1


def test_a_cell_of_a_grid_is_the_job_that_hydra_composes(composer: None) -> None:
    """The grid does not compose every cell, so what it makes instead must be the same to the last key."""
    arguments = cli.rewrite(
        ["model=smollm2,gemma3_12b,qwen35b", "hardware=auto,2x_rtx3090", "kv_mode=q8_0,f16", "swarm_size=1,5",
         "kv_mode.swa_full=true", "model.quant=auto", "sampling=greedy", "window.policy=fixed",
         "window.tokens=2048,4096", "flash_attn=on,auto", "n_ubatch=64", "hardware.reserve=1GiB,2GiB"]
    )  # fmt: skip
    cells = grid.expand(arguments, "config")
    made = list(cells.cells(cli.to_job(cells.first)))
    assert len(made) == 3 * 2 * 2 * 2 * 2 * 2 * 2
    for cell in made[:: len(made) // 12]:
        assert cell.config == _composed([*arguments, *cell.overrides]), cell.overrides


def test_a_cell_of_a_grid_has_the_options_of_its_policy(composer: None) -> None:
    arguments = cli.rewrite(
        ["model=smollm2", "kv_mode=h2o,mean,fp8_h2o", "kv_mode.budget=512,0.5", "kv_mode.options.decay=0.9",
         "kv_mode.layer_weights=[2]", "kv_mode.granularity=token"]
    )  # fmt: skip
    cells = grid.expand(arguments, "config")
    made = list(cells.cells(cli.to_job(cells.first)))
    assert len(made) == 6
    for cell in made:
        assert cell.config == _composed([*arguments, *cell.overrides]), cell.overrides
        assert cell.config.kv_mode.options["decay"] == 0.9
    added = cli.rewrite(["kv_mode=f16", "kv_mode.policy=h2o,mean", "+kv_mode.options.decay=0.9,1"])
    cells = grid.expand(added, "config")
    made = list(cells.cells(cli.to_job(cells.first)))
    assert [(c.config.kv_mode.policy, c.config.kv_mode.options) for c in made] == [
        ("h2o", {"decay": 0.9}), ("h2o", {"decay": 1}), ("mean", {"decay": 0.9}), ("mean", {"decay": 1})
    ]  # fmt: skip
    dropped = cli.rewrite(
        ["kv_mode=h2o,fp8_h2o", "kv_mode.policy=window", "~kv_mode.options.decay", "~kv_mode.options.grace"]
    )
    cells = grid.expand(dropped, "config")
    assert all(cell.config.kv_mode.options == {} for cell in cells.cells(cli.to_job(cells.first)))


def test_an_eviction_mode_is_shown_apart_from_its_window(tmp_path: Path) -> None:
    said = planned(tmp_path, "kv_mode=fp8_h2o", "hardware=cpu_16gb", "prompt_tokens=6000")
    assert "window 6064 tokens (need): " in said
    assert "; 1536 cells, K f16, V f16, flash attention off\n" in said
    assert (
        "policy h2o keeps 1024 of these tokens, each head its own, and evicts every 256 tokens of prefill"
        in said
    )
    assert (
        "note: fp8 is emulated: 33.8 MiB are allocated, in f16 cells; FP8 codes" in said
        and "17.2 MiB" in said
    )
    assert "llama-server cannot evict" in said and "llama-server -" not in said
    [plan] = rows(tmp_path).to_dict("records")
    assert (plan["policy"], plan["budget_cells"], plan["chunk_tokens"]) == ("h2o", 1024, 256)
    assert (plan["granularity"], plan["codec"], plan["codec_bytes"]) == (
        "head",
        "fp8 (emulated)",
        1536 * 11_760,
    )


def test_cells_stay_where_prompts_grow(tmp_path: Path) -> None:
    axes = ("-m", "kv_mode=f16,h2o,window", "prompts.tokens=2000,4000,8000", "hardware=cpu_16gb")
    lines = planned(tmp_path, *axes).splitlines()
    assert lines[0].split()[4:9] == ["policy", "window", "budget", "cells", "weights"]
    kept = rows(tmp_path)
    evicting = kept[kept.policy != "none"]
    assert len(evicting) == 6 and evicting.kv_bytes.nunique() == 1
    assert kept[kept.policy == "none"].kv_bytes.nunique() == 3


def _composed(overrides: list[str]) -> JobConfig:
    single = [o for o in overrides if "," not in o]
    with hydra.initialize_config_dir(version_base="1.3", config_dir=str(conf_dir().resolve())):
        config: DictConfig = hydra.compose("config", single)
    return cli.to_job(config)


def test_the_largest_swarm_and_the_longest_window(tmp_path: Path) -> None:
    job = ("model=llama31_8b", "hardware=rtx4060_8gb", "prompt_tokens=4000")
    said = planned(tmp_path, *job, "solve=workers")
    most = int(said.split("solve=workers: ")[1].split()[0])
    planned(tmp_path, *job, f"swarm_size={most}")
    planned(tmp_path, *job, f"swarm_size={most + 1}", status=2)

    said = planned(tmp_path, *job, "solve=window", "swarm_size=3")
    longest = int(said.split("solve=window: ")[1].split()[0])
    fixed = (*job, "swarm_size=3", "window.policy=fixed")
    planned(tmp_path, *fixed, f"window.tokens={longest}")
    planned(tmp_path, *fixed, f"window.tokens={longest + 1}", status=2)


def test_the_frontier_falls_with_every_worker(tmp_path: Path) -> None:
    told = json.loads(
        planned(tmp_path, "model=llama31_8b", "hardware=rtx4060_8gb", "solve=both", "sampling.max_tokens=512",
                "view=json")
    )  # fmt: skip
    assert [row["workers"] for row in told] == list(range(1, len(told) + 1))
    windows = [row["window_tokens"] for row in told]
    assert windows == sorted(windows, reverse=True) and windows[0] > windows[-1]
    assert all(row["status"] == "fits" for row in told)


def test_jobs_beside_each_other(tmp_path: Path) -> None:
    said = planned(tmp_path, "-m", "model=llama31_8b,qwen3_8b", "hardware=cpu_16gb", "together=processes")
    assert "all 2 at once: " in said and "they fit" in said
    said = planned(tmp_path, "-m", "model=gpt_oss_20b,qwen3_8b", "hardware=cpu_16gb", "together=mixed")
    assert "are missing" in said


def test_cells_that_cannot_be_planned_are_named_and_not_added_up(tmp_path: Path) -> None:
    axes = ("-m", "model=llama31_8b,qwen3_8b", "swarm_size=1,3", "window.max=100,4000", "together=processes")
    lines = planned(tmp_path, *axes, "hardware=cpu_16gb").splitlines()
    refused = [line.split() for line in lines if line.endswith("refused")]
    assert [row[:4] for row in refused] == [
        [name, "cpu_16gb", "f16", workers] for name in ("llama31_8b", "qwen3_8b") for workers in "13"
    ]
    assert lines[-1] == "all 8 at once: 4 of them have no plan"
    kept = rows(tmp_path)
    assert set(kept[kept.status == "refused"].model) == {"llama31_8b", "qwen3_8b"}


def test_showing_the_config_is_no_refusal(tmp_path: Path) -> None:
    assert "prompt_tokens: null" in planned(tmp_path, "--cfg", "job")


def test_nothing_of_the_engine_is_imported(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom runner.plan import main\nsys.argv = ['plan', '-m', 'model=qwen35b', 'swarm_size=1,5']\n"
        "main()\nassert not [name for name in sys.modules if name.startswith(('llama_cpp', 'runner.engine'))]\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model=qwen35"], "model=qwen35: there is no such option; did you mean qwen35b?"),
        (["-m", "model=qwen35,smollm2"], "model=qwen35: there is no such option; did you mean qwen35b?"),
        (["-m", "kv_mode=f16,", "swarm_size=1"], "kv_mode=f16,: this does not parse"),
        (["-m", "swarm_size=0,3"], "swarm_size.workers=0: input should be greater than or equal to 1"),
        (["-m", "swarm_size=1,five"], "mixes numbers and named options"),
        (["-m", "solve=workers,window"], "solve: a plan sweeps keys and groups of a job"),
        (["-m", "window.tokns=1,2"], "window.tokns: there is no such key"),
        (["-m", "swarm_size=range(5,1)"], "swarm_size.workers: the sweep has no values"),
        (["solve=all"], "solve='all'"),
        (["view=html"], "view='html'"),
        (["prompt_tokens=0"], "prompt_tokens=0"),
        (["model=custom"], "model=custom has neither a file nor a profile; set model.path"),
        (["model=smollm2", "model.quant=Q8_0"], "model=smollm2: the model comes in one file"),
        (["prompts=jsonl"], "prompts=jsonl has no prompts"),
        (["prompts.path=none.jsonl"], "there is no prompt file none.jsonl"),
        (["hardware.ram=12 gigs"], "'12 gigs' is no size"),
        (
            ["kv_mode=h2o", "kv_mode.budget=1.5"],
            "kv_mode.budget=1.5: give a whole number of cells, at least 1, or a sh",
        ),
        (["kv_mode=h2o", "kv_mode.budget=9000"], "nothing would ever be evicted: kv_mode.budget=9000"),
        (
            ["kv_mode=h2o", "prompt_tokens=9000"],
            "eviction keeps fewer tokens at the positions that they have",
        ),
        (["kv_mode.policy=h20"], "there is no such policy; there are none, window, h2o"),
        (
            ["kv_mode=h2o", "kv_mode.policy=window"],
            "has no option 'decay'; it has none; kv_mode=window starts without",
        ),
        (["kv_mode=guided", "solve=window"], "a document of any length is read in the window that there is"),
        (["together=mixed"], "together=mixed adds up the cells of a grid; add -m"),
        (
            ["solve=window", "window.max=10"],
            "an answer of 64 tokens leaves no room for a prompt in a window of 10",
        ),
        (["solve=window", "sampling.max_tokens=9000"], "leaves no room for a prompt in a window of 8192"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, arguments: list[str], message: str) -> None:
    assert message in one_line(runner(tmp_path, *arguments, module="runner.plan"))


def test_a_grid_of_three_thousand_costs_little_more_than_its_plans(
    tmp_path: Path, composer: None, capsys: pytest.CaptureFixture[str]
) -> None:
    models = ("gemma3_12b", "gemma3_270m", "gpt_oss_20b", "llama31_8b", "qwen35b", "qwen397b", "qwen3_8b",
              "qwen3_coder_30b", "qwen_next_80b", "smollm2")  # fmt: skip
    machines = ("cpu_8gb", "cpu_16gb", "cpu_32gb", "rtx4060_8gb", "rtx4060ti_16gb", "rtx4090_24gb",
                "2x_rtx3090", "h200", "m3max_48gb", "iphone17_12gb")  # fmt: skip
    arguments = cli.rewrite(
        [
            f"model={','.join(models)}",
            f"hardware={','.join(machines)}",
            "kv_mode=f32,f16,bf16,q8_0,q4_0,k8v4",
            "swarm_size=1,3,5,7,9",
        ]
    )

    def grid_and_bare() -> tuple[float, float]:
        began = time.perf_counter()
        answers, _ = plan_grid(arguments)
        keep(answers, tmp_path)
        whole = time.perf_counter() - began
        requests = [answer.plan.request for answer in answers if answer.plan is not None]
        assert len(requests) == 3000
        began = time.perf_counter()
        for request in requests:
            resolve(request)
        return whole, time.perf_counter() - began

    ratios: list[float] = []
    for _ in range(3):
        whole, bare = grid_and_bare()
        ratios.append(whole / bare)
    assert min(ratios) <= 10, ratios
    assert capsys.readouterr().out.count("\n") >= 9000
