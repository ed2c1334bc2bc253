"""Where question-guided eviction breaks: accuracy by budget, a panel a chunk, a line a pooling and probe text.

`python docs/plots/guided_grid.py outputs/guided_grid` writes guided_grid.png beside the tables; it needs
`pip install -e ".[plot]"`.
"""

import json
import sys
from pathlib import Path

import matplotlib
import matplotlib.pyplot
import pandas as pd

from runner.tables import load

matplotlib.use("Agg")  # a file, not a window
folder = Path(sys.argv[1] if len(sys.argv) > 1 else "outputs/guided_grid")
jobs = load(folder).jobs.query("status == 'done'").reset_index(drop=True)
mode = pd.json_normalize([json.loads(config)["kv_mode"] for config in jobs["config"]])
mode["line"] = "pool " + mode["pool"].astype(str) + ", " + mode["probe.texts"].str.join(" | ")
grid = mode.assign(accuracy=jobs["accuracy"]).pivot_table("accuracy", "budget", ["chunk", "line"])
chunks = grid.columns.get_level_values("chunk").unique()
figure, panels = matplotlib.pyplot.subplots(
    1, len(chunks), sharey=True, squeeze=False, figsize=(4 * len(chunks), 4)
)
for panel, chunk in zip(panels[0], chunks, strict=True):
    grid[chunk].plot(ax=panel, marker="o", logx=True, xticks=grid.index, legend=False)
    panel.set(
        title=f"chunk {chunk}", xlabel="kv_mode.budget (cells)", ylabel="share right", ylim=(-0.05, 1.05)
    )
    panel.set_xticks(grid.index, [str(budget) for budget in grid.index], minor=False)
    panel.minorticks_off()
figure.legend(*panels[0][0].get_legend_handles_labels(), loc="upper center", bbox_to_anchor=(0.5, 0))
figure.savefig(folder / "guided_grid.png", dpi=150, bbox_inches="tight")
print(folder / "guided_grid.png")
