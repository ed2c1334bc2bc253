"""The prompts of a job, wherever they come from: a JSONL file, the config itself, or a generator."""

from runner.prompts.needle import needle_prompts
from runner.prompts.prompt import Message, Passage, Prompt, Turn
from runner.prompts.recall import recall_prompts
from runner.prompts.source import GENERATORS, least_tokens, load_passages, load_prompts

__all__ = [
    "GENERATORS",
    "Message",
    "Passage",
    "Prompt",
    "Turn",
    "least_tokens",
    "load_passages",
    "load_prompts",
    "needle_prompts",
    "recall_prompts",
]
