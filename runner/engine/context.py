"""A llama.cpp context: one unified KV cache, decoded in batches, its sequences forked and dropped."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from runner.engine.bindings import KV_TYPE_IDS, forget_complaints, last_error, lib
from runner.engine.eviction_log import EvictionRound
from runner.engine.reading import Reading
from runner.engine.survivors import Kept
from runner.engine.weights import Weights
from runner.errors import EngineError

if TYPE_CHECKING:
    from runner.planning.plan import Plan

Logits = npt.NDArray[np.float32]
Callback = Callable[[int, bool], bool]
Phase = Literal["prefill", "decode"]
"""Of a prompt, or of its answers."""

_INTS = ctypes.POINTER(ctypes.c_int32)
_PARTIAL_ONLY = lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY


@dataclass(frozen=True)
class ContextParams:
    """What an engine context is created with; ``n_ctx`` is in cells.

    ``n_outputs`` is how many tokens of a batch may want their logits, one a sequence where it is None;
    ``offload_kqv`` puts the cells where their layers are; without it they are in host memory.
    """

    n_ctx: int
    n_seq_max: int
    n_ubatch: int
    kv_type_k: str
    kv_type_v: str
    flash_attn: bool
    swa_full: bool
    n_threads: int
    offload_kqv: bool = True
    n_outputs: int | None = None


def context_params(plan: Plan) -> ContextParams:
    """The parameters a plan asks for; the dry run and the real run both come through here."""
    return ContextParams(
        n_ctx=plan.cells,
        n_seq_max=plan.n_seq_max,
        n_ubatch=plan.n_ubatch,
        kv_type_k=plan.kv_type_k,
        kv_type_v=plan.kv_type_v,
        flash_attn=plan.flash_attn,
        swa_full=plan.swa_full,
        n_threads=plan.n_threads,
        offload_kqv=plan.offload_kqv,
        n_outputs=plan.n_outputs,
    )


class Context:
    """A llama.cpp context with a unified KV cache, driven in batches of at most ``n_ubatch`` tokens.

    Attributes:
        chunk: tokens of prefill after which :meth:`evict` wants to be called; None where nothing ever leaves.
        interval: the same of answers, in tokens of each.
    """

    chunk: int | None = None
    interval: int | None = None

    def __init__(self, weights: Weights, params: ContextParams, callback: Callback | None = None) -> None:
        """Allocate the cache and the compute buffers.

        ``callback(tensor_address, ask)`` is called per graph node as ``ggml_backend_sched_eval_callback``
        is; what it raises is raised by :meth:`decode`.

        Raises:
            EngineError: llama.cpp refuses the parameters or has no memory.
        """
        self.params, self.weights = params, weights
        self.n_vocab = weights.n_vocab
        # With swa_full=False a masked cell of a sliding layer is re-used only if one sequence owns it.
        self.partial_state = weights.n_swa > 0 and not params.swa_full
        self.window = weights.n_swa
        self._raised: BaseException | None = None
        self._callback = lib.ggml_backend_sched_eval_callback(self._guard(callback)) if callback else None
        self._batch = Batch(params.n_ubatch)
        forget_complaints()
        handle = lib.llama_init_from_model(weights.handle, self._c_params())
        if not handle:
            raise EngineError(f"llama.cpp could not create a context: {last_error()}")
        self.handle = handle
        self._memory = lib.llama_get_memory(handle)

    def _c_params(self) -> Any:
        p, c = self.params, lib.llama_context_default_params()
        c.n_ctx, c.n_seq_max = p.n_ctx, p.n_seq_max
        c.n_batch = c.n_ubatch = p.n_ubatch
        # As few as can be: without this the logits of a whole micro-batch are reserved.
        c.n_outputs_max = p.n_seq_max if p.n_outputs is None else max(p.n_outputs, p.n_seq_max)
        c.n_threads = c.n_threads_batch = p.n_threads
        c.type_k, c.type_v = KV_TYPE_IDS[p.kv_type_k], KV_TYPE_IDS[p.kv_type_v]
        c.flash_attn_type = (
            lib.LLAMA_FLASH_ATTN_TYPE_ENABLED if p.flash_attn else lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        c.swa_full, c.kv_unified, c.offload_kqv = p.swa_full, True, p.offload_kqv
        if self._callback is not None:
            c.cb_eval = self._callback
        return c

    def _guard(self, callback: Callback) -> Callable[[int, bool, Any], bool]:
        def guarded(tensor: int, ask: bool, _: Any) -> bool:
            # An exception that leaves a ctypes callback is printed and lost, and the decode goes on with
            # garbage: keep it for decode() to raise.
            if self._raised is None:
                try:
                    return callback(tensor, ask)
                except BaseException as error:
                    self._raised = error
            return not ask

        return guarded

    def close(self) -> None:
        """Free the context."""
        if self.handle:
            lib.llama_free(self.handle)
            self.handle = None

    def decode(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[int],
        outputs: Sequence[bool],
    ) -> Logits:
        """Run one batch; all four arguments have one entry a token.

        Returns:
            float32 ``[sum(outputs), n_vocab]``, in batch order: a view that the next call overwrites.

        Raises:
            EngineError: the batch is empty or longer than ``n_ubatch``, no cells are free, the graph failed.
        """
        if not 0 < len(tokens) <= self.params.n_ubatch:
            raise EngineError(
                f"a batch of {len(tokens)} tokens; this context takes 1 to {self.params.n_ubatch}"
            )
        self._batch.fill(tokens, positions, sequences, outputs)
        return self.run(self._batch)

    def run(self, batch: Batch) -> Logits:
        """Run a batch that is filled already; see :meth:`decode`."""
        status = lib.llama_decode(self.handle, batch.c)
        if self._raised is not None:
            error, self._raised = self._raised, None
            raise error
        if status == 1:
            raise EngineError(f"no {batch.c.n_tokens} free cells among {self.params.n_ctx}: {last_error()}")
        if status != 0:
            raise EngineError(f"llama_decode failed with {status}: {last_error()}")
        if batch.n_outputs == 0:
            return np.empty((0, self.n_vocab), np.float32)
        return np.ctypeslib.as_array(lib.llama_get_logits(self.handle), (batch.n_outputs, self.n_vocab))

    def clear(self) -> None:
        """Forget every sequence, as in a new context."""
        lib.llama_memory_clear(self._memory, False)

    def fork(self, source: int, target: int) -> None:
        """Let ``target`` own the cells of ``source`` too; recurrent state is copied when it next decodes."""
        lib.llama_memory_seq_cp(self._memory, source, target, -1, -1)

    def drop(self, sequence: int) -> None:
        """Forget one sequence; a cell is free when its last owner lets go."""
        if not lib.llama_memory_seq_rm(self._memory, sequence, -1, -1):
            raise EngineError(f"sequence {sequence} could not be dropped")

    def begin(self, reading: Reading) -> None:
        """A prompt follows, whose document is read like this."""

    def probe(self, sequence: int, spare: int, *, last: bool) -> int:
        """Find out what questions look at in ``sequence``, if its next eviction needs to know.

        Args:
            sequence: of the document; it does not advance.
            spare: an empty sequence, which is left empty.
            last: whether the document ends here.

        Returns:
            How many tokens were decoded for that.
        """
        return 0

    def evict(self, sequences: Sequence[int], phase: Phase) -> None:
        """Let tokens of ``sequences`` leave as the KV mode says; this context keeps all."""

    def take_rounds(self) -> list[EvictionRound]:
        """What evictions did since this was last asked."""
        return []

    def take_kept(self) -> Kept | None:
        """What was left of the last prompt after the last eviction from its document, or from the prompt where it
        has no document or that fitted; None where nothing was evicted since this was last asked.
        """
        return None

    def save_partial(self, sequence: int) -> bytes:
        """The part of a sequence that cannot be cut back: its sliding-window cells and recurrent state."""
        return bytes(self._read_state(sequence, _PARTIAL_ONLY))

    def load_partial(self, sequence: int, state: bytes) -> None:
        """Put back what :meth:`save_partial` gave, into cells that this sequence alone owns."""
        self._write_state(sequence, state, _PARTIAL_ONLY)

    def _read_state(self, sequence: int, flags: int) -> bytearray:
        size = lib.llama_state_seq_get_size_ext(self.handle, sequence, flags)
        state = bytearray(size)
        buffer = (ctypes.c_uint8 * size).from_buffer(state)
        if lib.llama_state_seq_get_data_ext(self.handle, buffer, size, sequence, flags) != size:
            raise EngineError(f"the state of sequence {sequence} could not be read")
        return state

    def _write_state(self, sequence: int, state: bytes | bytearray, flags: int) -> None:
        whole = ctypes.c_uint8 * len(state)
        buffer = whole.from_buffer(state) if isinstance(state, bytearray) else whole.from_buffer_copy(state)
        if lib.llama_state_seq_set_data_ext(self.handle, buffer, len(state), sequence, flags) == 0:
            raise EngineError(f"the state of sequence {sequence} could not be restored: {last_error()}")


class Batch:
    """A ``llama_batch`` of at most ``room`` tokens over numpy arrays, so that filling it is four assignments."""

    def __init__(self, room: int) -> None:
        self._token, self._pos = np.zeros(room, np.int32), np.zeros(room, np.int32)
        self._n_seq, self._seq = np.ones(room, np.int32), np.zeros(room, np.int32)
        self._output = np.zeros(room, np.int8)
        self._seq_pointers = (self._seq.ctypes.data + 4 * np.arange(room)).astype(np.uintp)
        self.n_outputs = 0
        self.c = lib.llama_batch(
            token=ctypes.cast(self._token.ctypes.data, _INTS),
            pos=ctypes.cast(self._pos.ctypes.data, _INTS),
            n_seq_id=ctypes.cast(self._n_seq.ctypes.data, _INTS),
            seq_id=ctypes.cast(self._seq_pointers.ctypes.data, ctypes.POINTER(_INTS)),
            logits=ctypes.cast(self._output.ctypes.data, ctypes.POINTER(ctypes.c_int8)),
        )

    def fill(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[int],
        outputs: Sequence[bool],
    ) -> None:
        """Hold these tokens, one entry each in every argument."""
        n = len(tokens)
        self._token[:n], self._pos[:n], self._seq[:n], self._output[:n] = (
            tokens,
            positions,
            sequences,
            outputs,
        )
        self.c.n_tokens, self.n_outputs = n, int(sum(outputs))
