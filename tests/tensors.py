"""Where a graph's tensors lie: all that a callback of the scheduler is shown, by name."""

from __future__ import annotations

import re
from dataclasses import dataclass

from runner.engine.bindings import ggml
from runner.engine.tensors import Tensor


@dataclass(frozen=True, order=True)
class Span:
    """Some bytes of this process."""

    address: int
    size: int


class Seen:
    """A context's callback: what every tensor of a decoded graph is a view of, itself included."""

    def __init__(self) -> None:
        self._spans: dict[str, set[Span]] = {}

    def __call__(self, address: int, ask: bool) -> bool:
        if ask:
            for tensor in (address, *filter(None, Tensor.from_address(address).src)):
                self._see(tensor)
        return False

    def _see(self, address: int) -> None:
        tensor = Tensor.from_address(address)
        while tensor.view_src:
            address = tensor.view_src
            tensor = Tensor.from_address(address)
        span = Span(tensor.data or 0, ggml.ggml_nbytes(address))
        self._spans.setdefault(tensor.name.decode(), set()).add(span)

    def spans(self, pattern: str) -> list[Span]:
        """Of the tensors whose name matches ``pattern``, each once."""
        found = {span for name, spans in self._spans.items() if re.fullmatch(pattern, name) for span in spans}
        return sorted(found)

    def bytes(self, pattern: str) -> int:
        """Their sum."""
        return sum(span.size for span in self.spans(pattern))


CELLS, STATES = r"cache_[kv]_l\d+", r"cache_[rs]_l\d+"
WEIGHTS = r"(blk\.|token_embd|output).*"
