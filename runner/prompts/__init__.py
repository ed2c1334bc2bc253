"""The prompts of a job, wherever they come from: a JSONL file, the config itself, or a generator."""

from runner.prompts.needle import needle_prompts
from runner.prompts.prompt import Message, Passage, Prompt, Turn
from runner.prompts.source import least_tokens, load_passages, load_prompts

__all__ = [
    "Message",
    "Passage",
    "Prompt",
    "Turn",
    "least_tokens",
    "load_passages",
    "load_prompts",
    "needle_prompts",
]
