"""Contexts: the state of one or more sequences of a model, decoding and its outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

from . import checks, errors, lifecycle, log
from ._native import check, ffi, lib, reason
from .batch import Batch
from .generate import Generation
from .interrupt import Interrupt
from .lora import LoraAdapter
from .model import Model
from .sequences import Sequences

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .sampler import Sampler

_POOLING = {"unspecified": -1, "none": 0, "mean": 1, "cls": 2, "last": 3, "rank": 4}
_FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}
_CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
_MAX_SEQUENCES = 256  # LLAMA_MAX_SEQ in upstream's llama-cparams.h, which aborts above it
_MAX_CONTEXT = 1 << 24  # sizes beyond it only come from mistakes, and upstream's bookkeeping alone takes gigabytes
_SIZES = (lib.llama_n_ctx, lib.llama_n_ctx_seq, lib.llama_n_batch, lib.llama_n_ubatch, lib.llama_n_seq_max)


class Context(Sequences):
    """What a model knows of its sequences (the KV cache), and the place where it computes.

    `n_ctx` is in tokens, over all sequences; 0 takes what the model was trained with, None that but at most 4096. `n_batch`
    tokens are decoded at once, `n_ubatch` in one computation. `n_seq_max` sequences have their own state. `n_threads` 0
    takes the physical cores. `embeddings` makes decode() produce embeddings, pooled as `pooling` says (unspecified: as the
    model wants it, none, mean, cls, last, rank). `type_k` and `type_v` are the types of the cache. `flash_attention` is
    auto, on or off. `abort` is called about 50 times a second while the CPU computes, by the decoding thread; if it returns
    True, decode() raises AbortedError.

    Calls of several threads are done one after the other. Closing waits for a running call; `abort()` ends it.
    """

    def __init__(
        self,
        model: Model,
        *,
        n_ctx: int | None = None,
        n_batch: int = 2048,
        n_ubatch: int = 512,
        n_seq_max: int = 1,
        n_threads: int = 0,
        n_threads_batch: int = 0,
        embeddings: bool = False,
        pooling: str = "unspecified",
        type_k: str = "f16",
        type_v: str = "f16",
        flash_attention: str = "auto",
        kv_unified: bool = False,
        swa_full: bool = False,
        offload_kqv: bool = True,
        rope_freq_base: float = 0.0,
        rope_freq_scale: float = 0.0,
        abort: Callable[[], bool] | None = None,
    ) -> None:
        if not isinstance(model, Model):
            raise TypeError(f"model must be a Model, not {type(model).__name__}")
        if model.vocab_only:
            raise ValueError(f"{model.path} was loaded with vocab_only=True: it has no weights to compute with")
        if n_ctx is None:
            n_ctx = min(model.n_ctx_train, 4096)
        size = checks.integer("n_ctx", n_ctx, 0, _MAX_CONTEXT) or model.n_ctx_train
        sequences = checks.integer("n_seq_max", n_seq_max, 1, _MAX_SEQUENCES)
        threads = checks.integer("n_threads", n_threads, 0, lib.GGML_MAX_N_THREADS) or lib.pyggml_default_threads()
        params = ffi.new("struct llama_context_params *", lib.llama_context_default_params())
        params.n_ctx, params.n_seq_max = size, sequences
        params.n_batch = checks.integer("n_batch", n_batch, 1, _MAX_CONTEXT)
        params.n_ubatch = min(checks.integer("n_ubatch", n_ubatch, 1, _MAX_CONTEXT), params.n_batch)
        params.n_threads = threads
        params.n_threads_batch = (
            checks.integer("n_threads_batch", n_threads_batch, 0, lib.GGML_MAX_N_THREADS) or threads
        )
        params.embeddings = checks.flag("embeddings", embeddings)
        params.pooling_type = _POOLING[checks.word("pooling", pooling, _POOLING)]
        params.flash_attn_type = _FLASH_ATTENTION[checks.word("flash_attention", flash_attention, _FLASH_ATTENTION)]
        params.type_k = getattr(lib, f"GGML_TYPE_{checks.word('type_k', type_k, _CACHE_TYPES).upper()}")
        params.type_v = getattr(lib, f"GGML_TYPE_{checks.word('type_v', type_v, _CACHE_TYPES).upper()}")
        params.kv_unified = checks.flag("kv_unified", kv_unified)
        params.swa_full = checks.flag("swa_full", swa_full)
        params.offload_kqv = checks.flag("offload_kqv", offload_kqv)
        params.rope_freq_base = checks.number("rope_freq_base", rope_freq_base, 0)
        params.rope_freq_scale = checks.number("rope_freq_scale", rope_freq_scale, 0)
        self.model = model
        self._interrupt = Interrupt(abort)
        self._set_up_outputs(embeddings)
        self._set_up_sequences(
            sequences, f"{model._fingerprint} {type_k} {type_v} {flash_attention} {kv_unified} {swa_full}"
        )
        log.sync_level()
        out = ffi.new("struct llama_context **")
        try:
            with lifecycle.opening(f"Context of {model!r}, being created"), model._lock:
                if status := lib.pyggml_context_new(model.handle, params, self._interrupt.native, out):
                    why = reason()
                    # a device's failure is only in its log lines
                    full = status == lib.PYGGML_NO_MEMORY or "alloc" in why
                    raise (errors.OutOfMemoryError if full else errors.PyggmlError)(
                        f"{model.path}: no context of {size} tokens (n_ctx) can be created: {why}"
                    )
                self._sizes = [int(size(out[0])) for size in _SIZES]
                self._adopt(out[0], model)
        except BaseException:
            if self._adopted:  # Ctrl+C may come at any line
                self.close()
            elif out[0]:
                lib.llama_free(out[0])
            raise

    def __repr__(self) -> str:
        return f"Context of {self.__dict__.get('model')!r}"

    # -- what it is ------------------------------------------------------------------------------------------------------

    def _size(self, index: int) -> int:
        self.handle  # noqa: B018  (raises for a closed context)
        return self._sizes[index]

    @property
    def n_ctx(self) -> int:
        return self._size(0)

    @property
    def n_ctx_seq(self) -> int:
        """Tokens that one sequence can have."""
        return self._size(1)

    @property
    def n_batch(self) -> int:
        return self._size(2)

    @property
    def n_ubatch(self) -> int:
        return self._size(3)

    @property
    def n_seq_max(self) -> int:
        return self._size(4)

    # -- decoding --------------------------------------------------------------------------------------------------------

    def decode(self, batch: Batch | Sequence[int], *, seq_id: SupportsIndex = 0) -> None:
        """Compute a batch, or tokens that continue a sequence; outputs are then in `logits()` and `embeddings()`.

        More than `n_batch` tokens are computed in several steps; outputs are those of the last. Ctrl+C ends a computation
        on the CPU within about 20 ms and leaves the context usable; what was computed before stays in the sequence.
        Raises ContextFullError, AbortedError, OutOfMemoryError, BufferError while a view (`copy=False`) of an output lives.
        """
        with self._lock:
            handle = self.handle
            sequence = self._seq_id(seq_id)
            if not isinstance(batch, Batch):
                tokens = checks.tokens("batch", batch, self.model.n_vocab)
                batch = Batch.of(tokens, position=self.length(sequence), seq_id=sequence)
            self._check_views("decode")
            self._check_batch(batch)
            run = lib.pyggml_encode if self.model.has_encoder and not self.model.has_decoder else lib.pyggml_decode
            self._interrupt.request(False)
            self._outputs = []
            for start in range(0, len(batch), self._sizes[2]):
                stop = min(start + self._sizes[2], len(batch))
                native, keep = batch.native(start, stop)
                status = run(handle, native)
                del keep
                self._raise(status)
                self._note_outputs(batch, start, stop)

    def _decode_known(self, tokens: list[int], seq_id: int) -> None:
        """Decode tokens that continue a sequence, and remember them for `_common()`."""
        with self._lock:
            known = self._cached.setdefault(seq_id, [])
            start = self.length(seq_id)
            self.decode(Batch.of(tokens, position=start, seq_id=seq_id))
            if len(known) == start:  # else somebody else added tokens
                known.extend(tokens)

    def abort(self) -> None:
        """End the decode that runs in another thread; it raises AbortedError there."""
        self.handle  # noqa: B018  (raises for a closed context)
        self._interrupt.request(True)

    def _raise(self, status: int) -> None:
        self._interrupt.raise_error()
        if status == lib.PYGGML_ABORTED:
            lifecycle.leave()
            raise errors.AbortedError("the decode was aborted")
        if status == lib.PYGGML_NO_SLOT:
            raise errors.ContextFullError(
                f"the batch does not fit: the context has {self._sizes[0]} tokens; remove some or make it larger (n_ctx)"
            )
        if status == lib.PYGGML_INVALID:
            raise ValueError(f"the batch cannot be decoded: {reason()}")
        check(status, "decode")

    def _check_batch(self, batch: Batch) -> None:
        if not len(batch):
            raise ValueError("there is nothing to decode: the batch is empty")
        n_vocab = self.model.n_vocab
        if not 0 <= min(batch.tokens) <= max(batch.tokens) < n_vocab:
            wrong = next(token for token in batch.tokens if not 0 <= token < n_vocab)
            raise ValueError(f"there is no token {wrong}: the vocabulary has {n_vocab}")
        worst = max(max(one) for one in batch.sequences)
        if worst >= self._n_seq_max:
            raise ValueError(f"there is no sequence {worst}: the context was made with n_seq_max={self._n_seq_max}")
        if len(batch) > self._sizes[3] and not self._memory:
            raise ValueError(
                f"this model reads a text in one go, and {len(batch)} tokens are more than the context's n_ubatch "
                f"of {self._sizes[3]}: make it with a larger n_ubatch and n_batch"
            )
        limit = self.model.n_positions
        if limit and max(batch.positions) >= limit:
            raise ValueError(
                f"the model knows {limit} positions, and the batch goes up to {max(batch.positions)}: give it shorter texts"
            )

    def _free(self, handle: Any) -> None:
        lib.llama_free(handle)

    # -- text ------------------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: SupportsIndex = -1,
        stop: Sequence[str] = (),
        sampler: Sampler | None = None,
        seq_id: SupportsIndex = 0,
        cache_prompt: bool = True,
        **sampling: Any,
    ) -> Generation:
        """Continue a prompt; an iterator over pieces of text.

        It ends after `max_tokens` (-1: when the context is full), at a token that ends a generation, or at one of the `stop`
        strings, which are not part of the text. `sampling` are the options of `Sampler`, or a `sampler` is given. With
        `cache_prompt` the part of the prompt that is in the sequence already is not computed again. Control tokens in a
        text prompt are recognised, as in a rendered chat template.
        """
        return Generation(self, prompt, max_tokens, stop, sampler, seq_id, cache_prompt, sampling)

    def embed(self, text: str | Sequence[int] | Sequence[str], *, normalize: bool = True) -> npt.NDArray[np.float32]:
        """The pooled embedding of a text: float32, shape (n_embd,); of several texts: shape (n, n_embd).

        Tokens can be given instead of a text. `normalize` scales to length 1. The context must be made with
        `embeddings=True`; without pooling the last token's embedding is taken. The sequence 0 is used and cleared.
        """
        import numpy as np

        checks.flag("normalize", normalize)
        self.handle  # noqa: B018
        if not self._embeddings:
            raise ValueError("this context makes no embeddings: make it with embeddings=True")
        if isinstance(text, str):
            tokens = self.model.vocab.tokenize(text)
        else:
            several = checks.items("text", text, "texts or tokens")
            if several and all(isinstance(one, str) for one in several):
                return np.stack([self.embed(one, normalize=normalize) for one in several])
            tokens = checks.tokens("text", several, self.model.n_vocab)
        if not tokens:
            raise ValueError("there is nothing to embed: the text has no tokens")
        with self._lock:
            self._check_views("embed")
            self.remove(0)
            self.decode(tokens)
            vector = self.embeddings_seq(0) if self._pooled else self.embeddings(-1)
            self.remove(0)
        length = float(np.linalg.norm(vector))
        return vector / np.float32(length) if normalize and length > 0 else vector

    # -- adapters --------------------------------------------------------------------------------------------------------

    def set_lora(self, adapters: Mapping[LoraAdapter, float] | Iterable[LoraAdapter]) -> None:
        """Use these adapters from now on, each with its scale (1.0 without one); none with an empty mapping."""
        if not isinstance(adapters, Iterable) or isinstance(adapters, str | bytes):
            raise TypeError(f"adapters must be a mapping or a sequence of LoraAdapter, not {type(adapters).__name__}")
        scales = dict(adapters) if isinstance(adapters, Mapping) else dict.fromkeys(adapters, 1.0)
        for adapter, scale in scales.items():
            if not isinstance(adapter, LoraAdapter):
                raise TypeError(f"an adapter is a LoraAdapter, not {type(adapter).__name__}")
            checks.number("the scale of an adapter", scale)
        with self._lock:
            self.handle  # noqa: B018
            for adapter in scales:
                adapter.handle  # noqa: B018
                if adapter._parent is not self.model:
                    raise ValueError(f"{adapter!r} was loaded for another model than this context's")
            self._use_loras(scales)

    def _use_loras(self, scales: dict[LoraAdapter, float]) -> None:
        handles = ffi.new("struct llama_adapter_lora *[]", [adapter._handle for adapter in scales])
        check(lib.pyggml_lora_set(self._handle, handles, len(scales), list(scales.values())), "set_lora")
        self._loras = scales
        self._cached.clear()  # what the sequences hold was computed with other weights

    def _forget_lora(self, adapter: LoraAdapter) -> None:
        with self._lock:
            if not self.closed and adapter in self._loras:
                self._use_loras(
                    {one: scale for one, scale in self._loras.items() if one is not adapter and not one.closed}
                )
