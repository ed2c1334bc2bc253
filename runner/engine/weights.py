"""A model in memory: its weights, its vocabulary, its chat template."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

from runner.engine import bindings
from runner.engine.bindings import forget_complaints, last_error, lib
from runner.errors import EngineError, ModelError


class Weights:
    """A loaded model: its weights and its vocabulary.

    ``vocab_only`` reads the vocabulary alone; ``no_alloc`` reads metadata alone, for a dry run.
    """

    def __init__(
        self,
        path: Path,
        *,
        n_gpu_layers: int = 0,
        on_host: Sequence[str] = (),
        vocab_only: bool = False,
        no_alloc: bool = False,
    ) -> None:
        """Load ``path``; tensors whose name matches a pattern in ``on_host`` stay in host memory.

        Raises:
            ModelError: the file cannot be loaded; carries llama.cpp's own reason.
        """
        params = lib.llama_model_default_params()
        params.n_gpu_layers = n_gpu_layers
        params.vocab_only = vocab_only
        overrides = bindings.on_host(on_host)
        params.tensor_buft_overrides = ctypes.cast(overrides, ctypes.c_void_p)
        params.no_alloc = no_alloc
        if no_alloc:
            # Every other mode aborts the process together with no_alloc.
            params.load_mode = lib.LLAMA_LOAD_MODE_NONE
        forget_complaints()
        handle = lib.llama_model_load_from_file(str(path).encode(), params)
        if not handle:
            raise ModelError(f"{path} cannot be loaded: {last_error()}; fetch it again or set model.path")
        self.path = path
        self.handle = handle
        self.vocab = lib.llama_model_get_vocab(handle)
        self.n_vocab = int(lib.llama_vocab_n_tokens(self.vocab))
        self.n_swa = int(lib.llama_model_n_swa(handle))
        rope_type = int(lib.llama_model_rope_type(handle))
        self.is_mrope = rope_type in (lib.LLAMA_ROPE_TYPE_MROPE, lib.LLAMA_ROPE_TYPE_IMROPE)

    def close(self) -> None:
        """Free the model; every context on it must be closed before."""
        if self.handle:
            lib.llama_model_free(self.handle)
            self.handle = None

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of ``text``; ``add_special`` adds BOS/EOS as the model wants them."""
        data = text.encode("utf-8", "replace")
        room = len(data) + 16
        tokens = (lib.llama_token * room)()
        n = lib.llama_tokenize(self.vocab, data, len(data), tokens, room, add_special, parse_special)
        if n < 0:
            raise EngineError(f"a text of {len(data)} bytes could not be tokenised")
        return tokens[:n]

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes of one token, which may be part of a UTF-8 character; control tokens are empty."""
        room = 64
        while True:
            buffer = ctypes.create_string_buffer(room)
            n = lib.llama_token_to_piece(self.vocab, token, buffer, room, 0, special)
            if n >= 0:
                return buffer.raw[:n]
            room = -n

    def is_end(self, token: int) -> bool:
        """Whether the token ends a generation."""
        return bool(lib.llama_vocab_is_eog(self.vocab, token))

    def special_text(self, which: str) -> str:
        """The text of the ``bos`` or ``eos`` token; empty where the model has none."""
        token = lib.llama_vocab_bos(self.vocab) if which == "bos" else lib.llama_vocab_eos(self.vocab)
        return "" if token < 0 else lib.llama_vocab_get_text(self.vocab, token).decode("utf-8", "replace")

    def chat_template(self) -> str | None:
        """The Jinja source of the model's chat template; None for a base model."""
        source = lib.llama_model_chat_template(self.handle, None)
        return source.decode("utf-8") if source else None
