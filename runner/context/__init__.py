"""Context strategies: what happens to a prompt before the swarm sees it, one file a strategy."""

from runner.context.base import Engine, Excerpt, PreparedPrompt, Stage, Strategy, Tokenizer
from runner.context.full import Full
from runner.context.history import History
from runner.context.probes import with_own_probes, with_probes
from runner.context.strategies import check_strategy, strategy_of

__all__ = [
    "Engine",
    "Excerpt",
    "Full",
    "History",
    "PreparedPrompt",
    "Stage",
    "Strategy",
    "Tokenizer",
    "check_strategy",
    "strategy_of",
    "with_own_probes",
    "with_probes",
]
