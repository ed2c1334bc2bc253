"""The prompts of a job, wherever they come from: a JSONL file, the config itself, or a generator."""

from runner.prompts.needle import needle_prompts
from runner.prompts.prompt import Prompt
from runner.prompts.source import least_tokens, load_prompts

__all__ = ["Prompt", "least_tokens", "load_prompts", "needle_prompts"]
