"""The policies by name: one file each; adding one is a file and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from kvcache.policies.base import Floats, HeldTokens, Needs, Policy
from kvcache.policies.guided import Guided
from kvcache.policies.h2o import H2O
from kvcache.policies.keydiff import KeyDiff
from kvcache.policies.mean import MeanAttention
from kvcache.policies.peak import PeakAttention
from kvcache.policies.snapkv import SnapKV
from kvcache.policies.tova import TOVA
from kvcache.policies.window import Window

__all__ = ["POLICIES", "Floats", "HeldTokens", "Needs", "Policy", "check_policy", "make_policy"]

POLICIES: dict[str, type[Policy]] = {
    "window": Window,
    "h2o": H2O,
    "peak": PeakAttention,
    "guided": Guided,
    "mean": MeanAttention,
    "snapkv": SnapKV,
    "tova": TOVA,
    "keydiff": KeyDiff,
}


def check_policy(name: str) -> str:
    """``name``, where it is ``none`` or a policy's.

    Raises:
        ValueError: it is not; lists what there is.
    """
    if name != "none" and name not in POLICIES:
        raise ValueError(f"there is no such policy; there are none, {', '.join(POLICIES)}")
    return name


def make_policy(name: str, options: Mapping[str, float]) -> Policy:
    """The policy ``name`` with these options.

    Raises:
        ValueError: no such policy (``none`` is none), or an option that it does not have; lists what there is.
    """
    if name not in POLICIES:
        raise ValueError(f"{name!r} is no policy; there are {', '.join(POLICIES)}")
    cls = POLICIES[name]
    known = [f.name for f in fields(cls)]  # type: ignore[arg-type]  # every policy is a dataclass
    for option in options:
        if option not in known:
            there = f"it has {', '.join(known)}" if known else "it has none"
            raise ValueError(f"the policy {name} has no option {option!r}; {there}")
    return cls(**options)
