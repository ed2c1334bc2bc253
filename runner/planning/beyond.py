"""What is done with a text that passes the context its model was trained for: a guided reading of its document."""

from __future__ import annotations

from runner.config import JobConfig
from runner.errors import BeyondTrainedError
from runner.overrides import with_overrides
from runner.planning.model.profile import ModelProfile
from runner.planning.remedies import Again, Step, Tried
from runner.planning.remedy import GUIDED, Remedy, budgets_below, guided_overrides


def within(
    config: JobConfig, error: BeyondTrainedError, profile: ModelProfile, again: Again
) -> tuple[JobConfig, Step]:
    """``config`` with a guided reading at the largest budget that fits, and the step that this is.

    Args:
        config: the job that passes the model's context.
        error: its refusal.
        profile: the model.
        again: the plan of another config of the same job.

    Raises:
        BeyondTrainedError: nothing fits, or nobody asked for it (``plan.apply``); then it says what to type.
    """
    words = guided_overrides(config, budgets_below(profile.n_ctx_train, profile))
    remedy, tried = (
        Remedy(GUIDED, "what the question does not look at is forgotten", words),
        Tried(config, again),
    )
    override = tried.mildest([], remedy) if words else None
    plan = tried.plan([override]) if override is not None else None
    if override is None or plan is None:
        raise error
    if not config.plan.apply:
        raise BeyondTrainedError(
            f"{error}; this makes it fit: {override}, in a window of {plan.window_tokens} tokens "
            f"(plan.apply=true takes it)"
        )
    step = Step(
        step=0,
        remedy=remedy.name,
        override=override,
        saved_bytes=0,
        total_bytes=plan.total_bytes,
        sufficient=True,
        applied=True,
        reason=remedy.cost,
    )
    return with_overrides(config, override.split()), step
