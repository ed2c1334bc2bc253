"""The rules by name; a new one is a file here and a line in ``RULES``."""

from __future__ import annotations

from runner.voting.rules.base import Rule
from runner.voting.rules.evidence import Evidence
from runner.voting.rules.majority import Majority
from runner.voting.rules.similarity import Similarity

RULES: dict[str, type[Rule]] = {rule.name: rule for rule in (Majority, Similarity, Evidence)}

__all__ = ["RULES", "Rule"]
