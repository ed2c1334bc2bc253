"""Workers that each read the document in a way of their own, so that their errors are less alike."""

from __future__ import annotations

from dataclasses import dataclass

from runner.context import PreparedPrompt
from runner.engine.reading import Reading
from runner.planning.plan import Plan
from runner.planning.prefill import least_of_a_worker, worker_budget, worker_first_chunk


@dataclass(frozen=True)
class Diversity:
    """How workers differ in reading a document.

    Worker 0 reads it as it is read for all where workers do not differ. Worker ``i`` of ``n`` evicts for the first
    time ``i / n`` of a chunk earlier, and keeps 90 %, 80 % or 70 % of the budget. Where probes have several texts
    each worker, worker 0 too, has one of them.

    Attributes:
        budget: cells that the plan keeps.
        least: cells that every worker keeps.
        chunk: tokens between two evictions.
    """

    budget: int
    least: int
    chunk: int

    @classmethod
    def of(cls, plan: Plan) -> Diversity | None:
        """As planned; None where all workers start from one reading."""
        mode = plan.request.kv_mode
        if not (mode.probes and mode.guided.diversify):
            return None
        least = least_of_a_worker(plan.request.profile, mode, plan.budget_cells)
        return cls(plan.budget_cells, least, plan.chunk_tokens)

    def reading(self, item: PreparedPrompt, worker: int, workers: int) -> Reading:
        """How ``worker``, one of so many, reads the document of ``item``."""
        texts = item.probes_by_text
        return Reading(
            probes=texts[worker % len(texts)] if len(texts) > 1 else item.probes,
            budget=worker_budget(self.budget, self.least, worker) if worker else None,
            first_chunk=worker_first_chunk(self.chunk, worker, workers) if worker else None,
        )
