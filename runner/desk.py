"""What a conversation asks of its job: contexts from the session, windows from the planner, rows in the ledger."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from runner import identity
from runner.config import JobConfig
from runner.context import PreparedPrompt
from runner.engine.context import Context
from runner.engine.modes import open_context
from runner.engine.sequence import Generation
from runner.growth import Growth
from runner.ledger import Ledger
from runner.planning import growth
from runner.planning.ask import Workload
from runner.planning.growth import GrowthDecision
from runner.planning.model.profile import ModelProfile
from runner.planning.plan import Plan
from runner.progress import Progress
from runner.report.terminal import View
from runner.resolve import replan
from runner.session import Session
from runner.trace import Tracer


@dataclass(frozen=True)
class JobDesk:
    """The :class:`runner.dialogue.Desk` of one job.

    ``settings`` is the job's settings id, ``workload`` what it was planned with.
    """

    config: JobConfig
    settings: str
    path: Path
    profile: ModelProfile
    workload: Workload
    session: Session
    ledger: Ledger
    view: View
    progress: Progress
    tracer: Tracer

    def open(self, plan: Plan) -> Context:
        """See :meth:`runner.dialogue.Desk.open`."""
        context = open_context(self.session.weights(self.path, plan), plan)
        self.tracer.follow(plan)
        if self.progress.phase == "load":
            self.progress.load_s = self.tracer.seconds
        return context

    def decide(
        self, held: Plan, window: int, session_tokens: int, decode_tok_s: float | None, confirmed: bool
    ) -> tuple[GrowthDecision, Plan | None]:
        """See :data:`runner.growth.Decide`."""
        plans: dict[int, Plan] = {}

        def refit(window_tokens: int) -> Plan:
            plans[window_tokens] = replan(
                self.config, self.path, self.profile, self.workload, window_tokens, held
            )
            return plans[window_tokens]

        limits, fixed = self.config.window, self.config.window.policy == "fixed"
        decision = growth.decide(
            replace(limits, max=window) if fixed else limits,
            native=self.profile.n_ctx_train or window,
            current_window=window,
            session_tokens=session_tokens,
            measured_decode_tok_s=decode_tok_s,
            idle=True,  # one conversation after the other has the engine to itself
            refit=refit,
            occupancy_confirmed=confirmed,
        )
        if fixed and decision.action == "compress-default":
            decision = replace(decision, reason=f"window.policy=fixed holds it at {window} tokens")
        return decision, None if decision.next_window is None else plans[decision.next_window]

    def asked(self, item: PreparedPrompt, windows: tuple[int, ...]) -> None:
        """See :meth:`runner.dialogue.Desk.asked`."""
        self.ledger.prompts([item], [identity.turn_id(self.settings, item, windows)])

    def answered(self, item: PreparedPrompt, generations: list[Generation]) -> str:
        """See :meth:`runner.dialogue.Desk.answered`."""
        verdict = self.ledger.group(item, generations)
        self.view.voted(item.prompt, verdict)
        return verdict.reply if verdict is not None else ""

    def grew(self, growth: Growth) -> None:
        """See :meth:`runner.dialogue.Desk.grew`."""
        self.ledger.growth(growth)
