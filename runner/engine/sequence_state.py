"""A saved sequence of llama.cpp, with the positions of its cells rewritten.

The engine shifts positions itself where it can also rotate K (``llama_memory_seq_add``). It cannot with IMROPE,
nor where sliding layers have a smaller cache than the others; there the state of the sequence is read, its
positions are changed in the bytes, and it is written back. The layout is that of the pinned build
(``state_write_meta`` and ``state_write_data`` of ``llama_kv_cache`` and ``llama_memory_recurrent``); every byte
is accounted for, or nothing is changed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from runner.errors import EngineError


@dataclass(frozen=True)
class StateLayout:
    """What a sequence's state consists of.

    Attributes:
        attention_parts: 2 where sliding layers have a cache of their own, else 1, or 0.
        recurrent: whether a recurrent state follows.
        two_dimensional: whether cells have a second position beside the first (MROPE and IMROPE).
        has_v: whether there is a V beside K.
    """

    attention_parts: int
    recurrent: bool
    two_dimensional: bool
    has_v: bool = True


def shifted(state: bytes, shift: int, layout: StateLayout) -> bytes:
    """``state`` with every position ``shift`` further.

    Raises:
        EngineError: the bytes are not laid out as expected; nothing is known of what they mean.
    """
    out = bytearray(state)
    try:
        at = 8  # a magic number and the sequence's own
        for _ in range(layout.attention_parts):
            at = _shift_cells(out, at, shift, layout)
        if layout.recurrent:
            at = _shift_recurrent(out, at, shift)
        if at != len(out):
            raise ValueError(f"it is described by {at} bytes and has {len(out)}")
    except (struct.error, ValueError) as error:
        raise EngineError(
            f"this model's cache cannot be given other positions ({error}); set kv_mode.positions=original"
        ) from None
    return bytes(out)


def _shift_cells(out: bytearray, at: int, shift: int, layout: StateLayout) -> int:
    """Shift one cache's cells, which begin at byte ``at``; returns where it ends."""
    streams, cells = struct.unpack_from("<II", out, at)
    if streams != 1:
        raise ValueError(f"{streams} streams")
    at += 8
    if not cells:
        return at
    for _ in range(cells):
        _add(out, at, shift)
        (owners,) = struct.unpack_from("<I", out, at + 4)
        if owners != 1:
            raise ValueError(f"a cell of {owners} sequences")
        at += 8
        if layout.two_dimensional:
            _add(out, at, shift)
            _add(out, at + 4, shift)
            at += 12
        at += 4
    transposed, layers = struct.unpack_from("<II", out, at)
    at += 8
    for _ in range(layers):
        at += 12 + cells * struct.unpack_from("<Q", out, at + 4)[0]
    for _ in range(layers if layout.has_v else 0):
        if transposed:
            size, width = struct.unpack_from("<II", out, at + 4)
            at += 12 + cells * size * width
        else:
            at += 12 + cells * struct.unpack_from("<Q", out, at + 4)[0]
    return at


def _shift_recurrent(out: bytearray, at: int, shift: int) -> int:
    """Shift a recurrent memory's cells, which begin at byte ``at`` and come last; returns where they end."""
    (cells,) = struct.unpack_from("<I", out, at)
    at += 4
    for _ in range(cells):
        _add(out, at, shift)
        (owners,) = struct.unpack_from("<I", out, at + 4)
        if owners:
            raise ValueError(f"a recurrent cell of {owners} sequences")
        at += 8
    at += 8  # whether rows are transposed, and a number of layers that counts those that keep none
    while at < len(out):
        at += 12 + cells * struct.unpack_from("<Q", out, at + 4)[0]
    return at


def _add(out: bytearray, at: int, shift: int) -> None:
    (position,) = struct.unpack_from("<i", out, at)
    struct.pack_into("<i", out, at, position + shift)
