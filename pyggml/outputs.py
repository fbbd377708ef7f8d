"""What a decode leaves behind: logits and embeddings, as numpy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsIndex

from . import checks
from ._native import ffi, lib
from .resource import Resource

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .batch import Batch
    from .model import Model


class Outputs(Resource):
    """The part of a `Context` that reads outputs."""

    model: Model
    _n_seq_max: int

    def _set_up_outputs(self, embeddings: bool) -> None:
        self._embeddings = embeddings
        self._views: list[None] = []  # one entry for each array that shows memory of the context
        self._outputs: list[int] = []  # places in the last batch
        self._first = 0  # where in that batch the part begins that was computed last

    def _note_outputs(self, batch: Batch, start: int, stop: int) -> None:
        # a context for embeddings has an output for every token
        self._outputs = [index for index in range(start, stop) if batch.outputs[index] or self._embeddings]
        self._first = start

    def _check_views(self, what: str) -> None:
        if self._views:
            raise BufferError(
                f"{what} would change memory that {len(self._views)} array(s) made with copy=False still show; delete them first"
            )

    def _check_close(self) -> None:
        self._check_views("close")

    def _output(self, index: SupportsIndex) -> int:
        """The number that llama.cpp has for an output."""
        found = checks.integer("index", index, -(2**31), 2**31 - 1)
        if not self._outputs:
            raise ValueError("there is no output: decode a batch with logits=True first")
        if not (found in self._outputs if found >= 0 else -found <= len(self._outputs)):
            raise ValueError(f"there is no output {found}; the last decode has outputs at {self._outputs}")
        return found - self._first if found >= 0 else found

    def logits(self, index: SupportsIndex = -1, *, copy: bool = True) -> npt.NDArray[np.float32]:
        """Logits of one output of the last decode: float32, shape (n_vocab,).

        `index` is the place in the batch; -1 is the last output. With `copy=False` the array shows the context's own memory:
        while it lives, `close()` and the next decode raise BufferError.
        """
        with self._lock:
            handle = self.handle
            pointer = lib.llama_get_logits_ith(handle, self._output(index))
            return self._array(pointer, self.model.n_vocab, copy, "logits")

    def embeddings(self, index: SupportsIndex = -1, *, copy: bool = True) -> npt.NDArray[np.float32]:
        """The embedding of one token of the last decode: float32, shape (n_embd,). Needs `embeddings=True` and pooling none."""
        with self._lock:
            handle = self.handle
            output = self._output(index)
            if self._embeddings and self._pooled:
                raise ValueError(
                    "this context pools its embeddings: use embeddings_seq(), or make it with pooling='none'"
                )
            return self._array(lib.llama_get_embeddings_ith(handle, output), self.model.n_embd, copy, "embeddings")

    def embeddings_seq(self, seq_id: SupportsIndex = 0, *, copy: bool = True) -> npt.NDArray[np.float32]:
        """The pooled embedding of a sequence: float32, shape (n_embd,), or (n_classes,) for pooling rank."""
        with self._lock:
            handle = self.handle
            sequence = checks.integer("seq_id", seq_id, 0, self._n_seq_max - 1)
            if self._embeddings and not self._pooled:
                raise ValueError(
                    "this context does not pool its embeddings: use embeddings(), or make it with a pooling"
                )
            size = self.model.n_classes if self._pooling == lib.LLAMA_POOLING_TYPE_RANK else self.model.n_embd
            return self._array(lib.llama_get_embeddings_seq(handle, sequence), size, copy, "embeddings")

    @property
    def _pooling(self) -> int:
        return int(lib.llama_pooling_type(self.handle))

    @property
    def _pooled(self) -> bool:
        return bool(self._pooling != lib.LLAMA_POOLING_TYPE_NONE)

    def _array(self, pointer: Any, size: int, copy: bool, what: str) -> npt.NDArray[np.float32]:
        import numpy as np

        checks.flag("copy", copy)
        if not pointer:
            remedy = (
                "make the context with embeddings=True" if what == "embeddings" else "decode a batch that asks for them"
            )
            raise ValueError(f"the last decode produced no {what} here: {remedy}")
        if copy:
            return np.frombuffer(ffi.buffer(pointer, size * 4), dtype=np.float32).copy()
        # The pointer lives as long as an array (or a view of it) does; its destructor, a method, keeps this context alive.
        self._views.append(None)
        owner = ffi.gc(pointer, self._view_is_gone)
        array: npt.NDArray[np.float32] = np.frombuffer(ffi.buffer(owner, size * 4), dtype=np.float32)
        array.flags.writeable = False
        return array

    def _view_is_gone(self, _: Any) -> None:
        self._views.pop()
