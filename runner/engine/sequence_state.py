"""A saved sequence of llama.cpp, with the positions of its cells rewritten.

The engine shifts positions itself where it can also rotate K (``llama_memory_seq_add``). It cannot with IMROPE,
nor where sliding layers have a smaller cache than the others; there the state of the sequence is read, its
positions are changed in the bytes, and it is written back. The layout is that of the pinned build
(``state_write_meta`` and ``state_write_data`` of ``llama_kv_cache`` and ``llama_memory_recurrent``); every byte
is accounted for, or the state is refused.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

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


def shift_positions(state: bytearray, shift: int, layout: StateLayout) -> None:
    """Bring every position in ``state`` ``shift`` further, in place: it may be as large as a cache.

    Raises:
        EngineError: the bytes are not laid out as expected; nothing is known of what they mean.
    """
    try:
        at = 8  # a magic number and the sequence's own
        for _ in range(layout.attention_parts):
            at = _shift_cells(state, at, shift, layout)
        if layout.recurrent:
            at = _shift_recurrent(state, at, shift)
        if at != len(state):
            raise ValueError(f"it is described by {at} bytes and has {len(state)}")
    except (struct.error, ValueError) as error:
        raise EngineError(
            f"this model's cache cannot be given other positions ({error}); set kv_mode.positions=original"
        ) from None


def _shift_cells(state: bytearray, at: int, shift: int, layout: StateLayout) -> int:
    """Shift one cache's cells, which begin at byte ``at``; returns where it ends."""
    streams, cells = struct.unpack_from("<II", state, at)
    if streams != 1:
        raise ValueError(f"{streams} streams")
    at += 8
    if not cells:
        return at
    # Position and owners; a second position and a token where there are two dimensions; the owner.
    words = np.frombuffer(state, "<i4", cells * (6 if layout.two_dimensional else 3), at).reshape(cells, -1)
    if (words[:, 1] != 1).any():
        raise ValueError("cells of other than one sequence")
    words[:, [0, 2, 3] if layout.two_dimensional else [0]] += shift
    at += words.nbytes
    transposed, layers = struct.unpack_from("<II", state, at)
    at += 8
    for _ in range(layers):
        at += 12 + cells * _row_bytes(state, at)
    for _ in range(layers if layout.has_v else 0):
        if transposed:
            size, width = struct.unpack_from("<II", state, at + 4)
            at += 12 + cells * size * width
        else:
            at += 12 + cells * _row_bytes(state, at)
    return at


def _shift_recurrent(state: bytearray, at: int, shift: int) -> int:
    """Shift a recurrent memory's cells, which begin at byte ``at`` and come last; returns where they end."""
    (cells,) = struct.unpack_from("<I", state, at)
    at += 4
    words = np.frombuffer(state, "<i4", 2 * cells, at).reshape(cells, 2)
    if words[:, 1].any():
        raise ValueError("recurrent cells with sequences of their own")
    words[:, 0] += shift
    at += (
        words.nbytes + 8
    )  # whether rows are transposed, and a number of layers that counts those that keep none
    while at < len(state):
        at += 12 + cells * _row_bytes(state, at)
    return at


def _row_bytes(state: bytearray, at: int) -> int:
    """What a layer's header at byte ``at``, a type and a size, says of one cell."""
    (size,) = struct.unpack_from("<Q", state, at + 4)
    return int(size)
