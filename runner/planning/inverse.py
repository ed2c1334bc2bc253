"""The plan's question turned round: how many workers, or how long a window, the memory is good for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from runner.errors import PlanRefusedError
from runner.planning.plan import Plan


@dataclass(frozen=True)
class Limit:
    """The largest number that fits, and its plan; 0 and the refusal where not even the smallest does."""

    value: int
    plan: Plan


def largest_tried(most: int, at: Callable[[int], Plan]) -> Limit:
    """As :func:`largest` from 1 on, where what a plan needs may fall again: every number is tried.

    Without a cell more for one more worker, it does: a micro-batch is rounded up to a multiple of the sequences.
    """
    for value in range(most, 1, -1):
        plan = at(value)
        if plan.status != "refused":
            return Limit(value, plan)
    return largest(1, at)


def largest(most: int, at: Callable[[int], Plan], least: int = 1) -> Limit:
    """The largest number from ``least`` to ``most`` whose plan is not refused, by bisection.

    What a plan needs never falls with workers or window, so that one answer is exact.
    """

    def plan(value: int) -> Plan | None:
        try:
            return at(value)
        except PlanRefusedError:
            return None

    smallest = at(least)
    if smallest.status == "refused":
        return Limit(0, smallest)
    low, best, high = least, smallest, most
    while low < high:
        middle = (low + high + 1) // 2
        tried = plan(middle)
        if tried is not None and tried.status != "refused":
            low, best = middle, tried
        else:
            high = middle - 1
    return Limit(low, best)
