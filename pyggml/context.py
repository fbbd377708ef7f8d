"""Contexts: the state of one or more sequences of a model, decoding and its outputs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import errors, log
from ._native import check, ffi, lib, reason
from .batch import Batch
from .generate import Generation
from .lifecycle import opening
from .model import LoraAdapter, Model
from .resource import Resource

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .sampler import Sampler

_POOLING = {"unspecified": -1, "none": 0, "mean": 1, "cls": 2, "last": 3, "rank": 4}
_FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}
_CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
_MAX_SEQUENCES = 256  # LLAMA_MAX_SEQ in upstream's llama-cparams.h, which aborts above it
_MAX_CONTEXT = 1 << 26  # sizes beyond it only come from mistakes, and upstream computes with 32 bits


class Context(Resource):
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
        if n_ctx is None:
            n_ctx = min(model.n_ctx_train, 4096)
        elif n_ctx == 0:
            n_ctx = model.n_ctx_train
        _in_range("n_ctx", n_ctx, 1, _MAX_CONTEXT)
        _in_range("n_batch", n_batch, 1, _MAX_CONTEXT)
        _in_range("n_ubatch", n_ubatch, 1, _MAX_CONTEXT)
        _in_range("n_seq_max", n_seq_max, 1, _MAX_SEQUENCES)
        _in_range("n_threads", n_threads, 0, lib.GGML_MAX_N_THREADS)
        _in_range("n_threads_batch", n_threads_batch, 0, lib.GGML_MAX_N_THREADS)
        params = ffi.new("struct llama_context_params *", lib.llama_context_default_params())
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = (
            n_ctx,
            n_batch,
            min(n_ubatch, n_batch),
            n_seq_max,
        )
        params.n_threads = n_threads or lib.pyggml_default_threads()
        params.n_threads_batch = n_threads_batch or params.n_threads
        params.embeddings = embeddings
        params.pooling_type = _named("pooling", pooling, _POOLING)
        params.flash_attn_type = _named("flash_attention", flash_attention, _FLASH_ATTENTION)
        params.type_k = _cache_type("type_k", type_k)
        params.type_v = _cache_type("type_v", type_v)
        params.kv_unified, params.swa_full, params.offload_kqv = kv_unified, swa_full, offload_kqv
        params.rope_freq_base, params.rope_freq_scale = rope_freq_base, rope_freq_scale
        self.model = model
        self._abort = abort
        self._abort_error: BaseException | None = None
        self._self_handle = ffi.new_handle(weakref.ref(self))
        self._interrupt = ffi.new("struct pyggml_interrupt *")
        self._interrupt.poll = lib.pyggml_py_interrupt
        self._interrupt.data = self._self_handle
        self._views: list[weakref.ref[Any]] = []
        self._loras: dict[LoraAdapter, float] = {}
        self._n_outputs = 0
        self._n_seq_max = n_seq_max
        self._embeddings = embeddings
        self._positions: list[int] = []
        self.cached: dict[int, list[int]] = {}  # the tokens that generate() and embed() know to be in each sequence
        log.sync_level()
        out = ffi.new("struct llama_context **")
        with opening(f"Context of {model!r}, being created"), model._lock:
            if lib.pyggml_context_new(model.handle, params, self._interrupt, out):
                text = f"{model.path}: no context of {n_ctx} tokens can be created: {reason()}"
                raise (errors.OutOfMemoryError if "alloc" in text else errors.PyggmlError)(text)
            super().__init__(out[0], model)

    def __repr__(self) -> str:
        return f"Context of {self.__dict__.get('model')!r}"

    # -- what it is ------------------------------------------------------------------------------------------------------

    @property
    def n_ctx(self) -> int:
        return self._call(lib.llama_n_ctx)

    @property
    def n_batch(self) -> int:
        return self._call(lib.llama_n_batch)

    @property
    def n_seq_max(self) -> int:
        return self._call(lib.llama_n_seq_max)

    @property
    def n_ctx_seq(self) -> int:
        """Tokens that one sequence can have."""
        return self._call(lib.llama_n_ctx_seq)

    def _call(self, function: Any) -> int:
        with self._lock:
            return int(function(self.handle))

    # -- decoding --------------------------------------------------------------------------------------------------------

    def decode(self, batch: Batch | Sequence[int], *, seq_id: int = 0) -> None:
        """Compute a batch, or tokens that continue a sequence; outputs are then in `logits()` and `embeddings()`.

        More than `n_batch` tokens are computed in several steps; outputs are those of the last. Ctrl+C ends a computation
        on the CPU within about 20 ms and leaves the context usable; what was computed before stays in the sequence.
        Raises ContextFullError, AbortedError, OutOfMemoryError, BufferError while a view (`copy=False`) of an output lives.
        """
        with self._lock:
            if not isinstance(batch, Batch):
                batch = Batch.of(batch, position=self.length(seq_id), seq_id=seq_id)
            self._check_views("decode")
            self._check_batch(batch)
            run = lib.pyggml_encode if self.model.has_encoder and not self.model.has_decoder else lib.pyggml_decode
            lib.pyggml_interrupt_request(self._interrupt, False)
            self._n_outputs = 0
            for start in range(0, len(batch), self.n_batch):
                stop = min(start + self.n_batch, len(batch))
                native, keep = batch.native(start, stop)
                status = run(self.handle, native)
                del keep
                self._raise(status)
                self._n_outputs = stop - start if self._embeds else sum(batch.outputs[start:stop])
                self._positions = [
                    index for index in range(stop - start) if batch.outputs[start + index] or self._embeds
                ]

    def abort(self) -> None:
        """End the decode that runs in another thread; it raises AbortedError there."""
        lib.pyggml_interrupt_request(self._interrupt, True)

    def _raise(self, status: int) -> None:
        error, self._abort_error = self._abort_error, None
        if error is not None:
            raise error
        if status == lib.PYGGML_ABORTED:
            raise errors.AbortedError("the decode was aborted")
        if status == lib.PYGGML_NO_SLOT:
            raise errors.ContextFullError(
                f"the batch does not fit: the context has {self.n_ctx} tokens; remove some or make it larger"
            )
        check(status, "decode")

    def _check_batch(self, batch: Batch) -> None:
        if not len(batch):
            raise ValueError("there is nothing to decode: the batch is empty")
        n_vocab = len(self.model.vocab)
        wrong = [token for token in batch.tokens if not 0 <= token < n_vocab]
        if wrong:
            raise ValueError(f"there is no token {wrong[0]}: the vocabulary has {n_vocab}")
        worst = max(max(one) for one in batch.sequences)
        if worst >= self._n_seq_max:
            raise ValueError(f"there is no sequence {worst}: the context was made with n_seq_max={self._n_seq_max}")

    def _check_views(self, what: str) -> None:
        self._views = [one for one in self._views if one() is not None]
        if self._views:
            raise BufferError(
                f"{what} would change memory that {len(self._views)} array(s) made with copy=False still show; delete them first"
            )

    def _check_close(self) -> None:
        self._check_views("close")

    def _free(self, handle: Any) -> None:
        lib.llama_free(handle)

    # -- outputs ---------------------------------------------------------------------------------------------------------

    def _check_output(self, index: int) -> None:
        if not self._n_outputs:
            raise ValueError("there is no output: decode a batch with logits=True first")
        valid = index in self._positions if index >= 0 else -index <= self._n_outputs
        if not valid:
            raise ValueError(f"there is no output {index}; the last decode has outputs at {self._positions}")

    def logits(self, index: int = -1, *, copy: bool = True) -> npt.NDArray[np.float32]:
        """Logits of one output of the last decode: float32, shape (n_vocab,).

        `index` is the place in the batch; -1 is the last output. With `copy=False` the array shows the context's own memory:
        while it lives, `close()` and the next decode raise BufferError.
        """
        with self._lock:
            self.handle  # noqa: B018
            self._check_output(index)
            return self._array(lib.llama_get_logits_ith(self.handle, index), len(self.model.vocab), copy, "logits")

    def embeddings(self, index: int = -1, *, copy: bool = True) -> npt.NDArray[np.float32]:
        """The embedding of one token of the last decode: float32, shape (n_embd,). Needs `embeddings=True` and pooling none."""
        with self._lock:
            self.handle  # noqa: B018
            self._check_output(index)
            return self._array(lib.llama_get_embeddings_ith(self.handle, index), self.model.n_embd, copy, "embeddings")

    def embeddings_seq(self, seq_id: int = 0, *, copy: bool = True) -> npt.NDArray[np.float32]:
        """The pooled embedding of a sequence: float32, shape (n_embd,), or (n_classes,) for pooling rank."""
        with self._lock:
            _in_range("seq_id", seq_id, 0, self._n_seq_max - 1)
            ranks = lib.llama_pooling_type(self.handle) == _POOLING["rank"]
            size = self.model.n_classes if ranks else self.model.n_embd
            return self._array(lib.llama_get_embeddings_seq(self.handle, seq_id), size, copy, "embeddings")

    def _array(self, pointer: Any, size: int, copy: bool, what: str) -> npt.NDArray[np.float32]:
        import numpy as np

        if not pointer:
            raise ValueError(
                f"the last decode produced no {what}; a context makes embeddings only with embeddings=True"
            )
        array: npt.NDArray[np.float32] = np.frombuffer(ffi.buffer(pointer, size * 4), dtype=np.float32)
        if copy:
            return array.copy()
        array.flags.writeable = False
        self._views.append(weakref.ref(array))
        return array

    @property
    def _embeds(self) -> bool:
        return bool(lib.llama_pooling_type(self.handle) != _POOLING["none"] and self._embeddings)

    # -- text ------------------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int = -1,
        stop: Sequence[str] = (),
        sampler: Sampler | None = None,
        seq_id: int = 0,
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

        `normalize` scales to length 1. The context must be made with `embeddings=True`. The sequence 0 is used and cleared.
        """
        import numpy as np

        if not isinstance(text, str) and text and isinstance(text[0], str):
            return np.stack([self.embed(str(one), normalize=normalize) for one in text])
        tokens = self.model.vocab.tokenize(text) if isinstance(text, str) else [int(token) for token in text]
        if not tokens:
            raise ValueError("there is nothing to embed: the text has no tokens")
        with self._lock:
            self.clear()
            self.decode(tokens)
            pooled = lib.llama_pooling_type(self.handle) != _POOLING["none"]
            vector = self.embeddings_seq(0) if pooled else self.embeddings(-1)
            self.clear()
        length = float(np.linalg.norm(vector))
        return vector / length if normalize and length > 0 else vector

    # -- sequences -------------------------------------------------------------------------------------------------------

    @property
    def _memory(self) -> Any:
        return lib.llama_get_memory(self.handle)

    def length(self, seq_id: int = 0) -> int:
        """How many positions of a sequence are in the context."""
        _in_range("seq_id", seq_id, 0, self._n_seq_max - 1)
        with self._lock:
            memory = self._memory
            return int(lib.llama_memory_seq_pos_max(memory, seq_id)) + 1 if memory else 0

    def clear(self) -> None:
        """Forget every sequence."""
        with self._lock:
            self.cached.clear()
            if self._memory:
                lib.llama_memory_clear(self._memory, True)

    def remove(self, seq_id: int = 0, start: int = 0, stop: int = -1) -> bool:
        """Forget positions `start` to `stop` (-1: the end) of a sequence. False if the model cannot forget a part."""
        with self._lock:
            _in_range("seq_id", seq_id, 0, self._n_seq_max - 1)
            if not self._memory:
                return True
            done = bool(lib.llama_memory_seq_rm(self._memory, seq_id, start, stop))
            if done:
                known = self.cached.get(seq_id, [])
                self.cached[seq_id] = known[:start] if stop < 0 or stop >= len(known) else []
            return done

    def copy(self, source: int, target: int) -> None:
        """Let the sequence `target` be what `source` is."""
        with self._lock:
            for seq_id in (source, target):
                _in_range("seq_id", seq_id, 0, self._n_seq_max - 1)
            if self._memory and source != target:
                lib.llama_memory_seq_rm(self._memory, target, -1, -1)
                lib.llama_memory_seq_cp(self._memory, source, target, -1, -1)
            self.cached[target] = list(self.cached.get(source, ()))

    def save_state(self, seq_id: int | None = None) -> bytes:
        """The state of one sequence, or of the whole context, for `load_state()` of a context of the same model and settings."""
        with self._lock:
            native = self._native_seq_id(seq_id)
            size = lib.pyggml_state_size(self.handle, native)
            data = ffi.new("uint8_t[]", max(size, 1))
            written = lib.pyggml_state_get(self.handle, data, size, native)
            if not written:
                raise errors.PyggmlError(f"the state cannot be saved: {reason()}")
            return bytes(ffi.buffer(data, written))

    def load_state(self, state: bytes, seq_id: int | None = None) -> None:
        """Restore what `save_state()` gave. Raises ValueError if it does not fit this context, which is then cleared."""
        if not isinstance(state, bytes | bytearray | memoryview):
            raise TypeError(f"state must be bytes, not {type(state).__name__}")
        with self._lock:
            self._check_views("load_state")
            native = self._native_seq_id(seq_id)
            self.cached.clear()
            self._n_outputs = 0
            if not len(state) or not lib.pyggml_state_set(
                self.handle, ffi.from_buffer("uint8_t[]", state), len(state), native
            ):
                why = reason() if len(state) else "it is empty"
                self.clear()
                raise ValueError(f"the state does not fit this context: {why}")

    def _native_seq_id(self, seq_id: int | None) -> int:
        if seq_id is None:
            return -1
        _in_range("seq_id", seq_id, 0, self._n_seq_max - 1)
        return seq_id

    # -- adapters --------------------------------------------------------------------------------------------------------

    def set_lora(self, adapters: Mapping[LoraAdapter, float] | Iterable[LoraAdapter]) -> None:
        """Use these adapters from now on, each with its scale (1.0 without one); none with an empty mapping."""
        with self._lock:
            scales = dict(adapters) if isinstance(adapters, Mapping) else dict.fromkeys(adapters, 1.0)
            for adapter in scales:
                if not isinstance(adapter, LoraAdapter):
                    raise TypeError(f"an adapter is a LoraAdapter, not {type(adapter).__name__}")
                if adapter._parent is not self.model:
                    raise ValueError(f"{adapter!r} was loaded for another model than this context's")
            handles = ffi.new("struct llama_adapter_lora *[]", [adapter.handle for adapter in scales])
            check(
                lib.llama_set_adapters_lora(
                    self.handle, handles, len(scales), ffi.new("float[]", list(scales.values()))
                ),
                "set_lora",
            )
            self._loras = scales
            self.cached.clear()  # what the sequences hold was computed with other weights

    def _forget_lora(self, adapter: LoraAdapter) -> None:
        if adapter in self._loras:
            self.set_lora({one: scale for one, scale in self._loras.items() if one is not adapter})


def _keep_error(kind: Any, error: BaseException, trace: Any) -> None:
    data = trace.tb_frame.f_locals.get("data") if trace is not None else None
    context = ffi.from_handle(data)() if data else None
    if context is not None:
        context._abort_error = error


# Called by the thread that decodes; merely to run Python here lets the interpreter see a pending Ctrl+C.
@ffi.def_extern(error=True, onerror=_keep_error)  # type: ignore[untyped-decorator]
def pyggml_py_interrupt(data: Any) -> bool:
    context = ffi.from_handle(data)()
    return context is not None and context._abort is not None and bool(context._abort())


def _in_range(name: str, value: int, least: int, most: int) -> None:
    if not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if not least <= value <= most:
        raise ValueError(f"{name} must be from {least} to {most}, not {value}")


def _named(name: str, value: str, names: Mapping[str, int]) -> int:
    if value not in names:
        raise ValueError(f"{name} must be one of {', '.join(names)}, not {value!r}")
    return names[value]


def _cache_type(name: str, value: str) -> int:
    if value not in _CACHE_TYPES:
        raise ValueError(f"{name} must be one of {', '.join(_CACHE_TYPES)}, not {value!r}")
    return int(getattr(lib, f"GGML_TYPE_{value.upper()}"))
