"""Context strategies: what happens to a prompt before the swarm sees it, one file a strategy."""

from runner.context.base import PreparedPrompt, Strategy, Tokenizer
from runner.context.full import Full
from runner.context.history import History
from runner.context.probes import with_own_probes, with_probes

__all__ = [
    "History",
    "PreparedPrompt",
    "Strategy",
    "Tokenizer",
    "strategy_for",
    "with_own_probes",
    "with_probes",
]

_STRATEGIES: dict[str, type[Strategy]] = {"full": Full}


def strategy_for(name: str) -> Strategy:
    """The strategy of this name; the config has checked that there is one."""
    return _STRATEGIES[name]()
