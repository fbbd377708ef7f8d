"""Files that no model can be made of: each is an exception that names the path and the reason, soon, without much memory, and
the process goes on. Damage that leaves a file which can be loaded must leave one that can be used."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import resource
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import models
import pytest

import pyggml

MIB = 1 << 20
TYPES = {"u16": 2, "u32": 4, "f32": 6, "str": 8, "arr": 9}
DIRECTORY = Path(__file__).parent.parent / "build" / "tests" / "models"
MAKERS: dict[str, Callable[[Path], Path]] = {
    "llama": lambda directory: models.llama(directory, n_vocab=512),
    "llama-q8": lambda directory: models.llama(directory, n_vocab=512, dtype="Q8_0"),
    "gemma3": lambda directory: models.gemma3(directory, n_vocab=512),
    "mamba": lambda directory: models.mamba(directory, n_vocab=512),
    "bert": lambda directory: models.bert(directory, n_vocab=512),
    "rerank": lambda directory: models.rerank(directory, n_vocab=512),
    "lora": models.lora,
}


@pytest.fixture(scope="module")
def good() -> Path:
    path = MAKERS["llama"](DIRECTORY)
    use(path)  # from here on backends are loaded and the allocator is warm
    return path


def use(path: Path) -> None:
    """Load a model, decode a few tokens, close it."""
    with pyggml.Model(path) as model:
        options = {"n_ctx": 64, "n_batch": 64, "n_ubatch": 64, "n_threads": 1}
        if len(model.vocab) == 0:
            return
        try:
            context = model.context(**options)
        except pyggml.PyggmlError:  # a damaged number may ask for what this machine does not have
            return
        with context:
            batch = pyggml.Batch()
            for position in range(4):
                batch.add(position % len(model.vocab), position, logits=True)
            with contextlib.suppress(pyggml.PyggmlError):
                context.decode(batch)


def status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise AssertionError(name)


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Within a second and 64 MiB."""
    linux = sys.platform == "linux"
    if linux:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        before = status("VmRSS")
    start = time.perf_counter()
    yield
    assert time.perf_counter() - start < 1.0
    if linux:
        assert status("VmHWM") - before < 64 * MIB


def refused(path: Path, *words: str, error: type[BaseException] = pyggml.ModelLoadError) -> None:
    """Loading raises `error`; the message has the path, a reason, and `words`."""
    with bounded(), pytest.raises(pyggml.PyggmlError) as caught:
        pyggml.Model(path).close()
    text = str(caught.value)
    assert isinstance(caught.value, error)
    assert text.startswith(f"{path}: ") and len(text) > len(f"{path}: ") + 4, text
    for word in words:
        assert word in text, text


# -- paths ---------------------------------------------------------------------------------------------------------------


def test_missing_file(good: Path, tmp_path: Path) -> None:
    refused(tmp_path / "no such.gguf", "no such file", error=FileNotFoundError)
    refused(good / "below a file.gguf")


def test_directory(good: Path, tmp_path: Path) -> None:
    refused(tmp_path, "directory", error=IsADirectoryError)


def test_no_permission(good: Path) -> None:
    root = os.geteuid() == 0  # may read everything, so become somebody else for a moment
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        path = Path(directory) / "secret.gguf"
        path.write_bytes(good.read_bytes())
        path.chmod(0)
        if root:
            os.seteuid(65534)
        try:
            with pytest.raises(PermissionError, match="permission denied") as caught:
                pyggml.Model(path).close()
        finally:
            if root:
                os.seteuid(0)
    assert isinstance(caught.value, pyggml.PyggmlError) and str(path) in str(caught.value)


def test_fifo_does_not_hang(good: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.gguf")
    refused(tmp_path / "fifo.gguf", "not a regular file")


def test_path_with_blanks_and_other_letters(good: Path, tmp_path: Path) -> None:
    path = tmp_path / "ein Modell für модель 模型.gguf"
    refused(path, error=FileNotFoundError)
    path.write_bytes(good.read_bytes())
    use(path)
    path.write_bytes(b"GGUF")
    refused(path, "ends within")


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "empty"),
        (b"G", "GGUF"),
        (b"hello, this is no model at all\n" * 100, "GGUF"),
        (b"PK\x03\x04" + bytes(1000), "GGUF"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "byte order"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 99, 0, 0), "version 99"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "general.architecture"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 62, 0) + bytes(1000), "number of tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 62) + bytes(1000), "number of metadata keys"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 63) + bytes(1000), "past the end"),
    ],
)
def test_no_gguf(good: Path, tmp_path: Path, content: bytes, word: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    refused(path, word)


def test_truncated_at_64_points(good: Path, tmp_path: Path, demo_model: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(demo_model.read_bytes())
    size = path.stat().st_size
    early = [int(size ** (i / 32)) for i in range(1, 32)]  # most of them in the header
    for length in sorted({*early, *(size * i // 33 for i in range(1, 33)), size - 1}, reverse=True):
        os.truncate(path, length)
        refused(path)


# -- crafted -------------------------------------------------------------------------------------------------------------


class Editor:
    """The bytes of a model file, with the places of its fields."""

    def __init__(self, path: Path) -> None:
        self.data = bytearray(path.read_bytes())
        self.layout = models.read_layout(path)

    def find(self, kind: str, name: str, index: int = 0) -> models.Span:
        return [span for span in self.layout.spans if span.kind == kind and span.name == name][index]

    def put(self, kind: str, name: str, value: int | float, index: int = 0) -> None:
        span = self.find(kind, name, index)
        size = span.end - span.begin
        format_ = "f" if isinstance(value, float) else {1: "B", 4: "I", 8: "Q"}[size]
        mask = (1 << 8 * size) - 1
        struct.pack_into("<" + format_, self.data, span.begin, value if isinstance(value, float) else value & mask)

    def rename(self, kind: str, old: str, new: str) -> None:
        """Change the text of a key or of a tensor's name."""
        assert len(old.encode()) == len(new.encode())
        for span in self.layout.spans:
            if span.kind == kind and self.data[span.begin : span.end] == old.encode():
                self.data[span.begin : span.end] = new.encode()
                return
        raise KeyError(old)

    def insert(self, key: str, type_: str, payload: bytes) -> None:
        """Add a key at the beginning, and another one that keeps the tensors aligned."""
        pair = struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", TYPES[type_]) + payload
        filler = "padding of " + key
        filler += "x" * (-(len(pair) + 8 + len(filler) + 4 + 4) % 32)
        pair += struct.pack("<Q", len(filler)) + filler.encode() + struct.pack("<II", TYPES["u32"], 0)
        self.data[24:24] = pair
        struct.pack_into("<Q", self.data, 16, struct.unpack_from("<Q", self.data, 16)[0] + 2)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


U32 = struct.Struct("<I").pack
TENSOR = "blk.0.attn_q.weight"
NORM = "blk.0.attn_norm.weight"


def replaced(key: str, type_: str, payload: bytes) -> Callable[[Editor], None]:
    def edit(editor: Editor) -> None:
        editor.rename("key", key, "X" + key[1:])
        editor.insert(key, type_, payload)

    return edit


def put(kind: str, name: str, value: int | float, index: int = 0) -> Callable[[Editor], None]:
    return lambda editor: editor.put(kind, name, value, index)


def renamed(kind: str, old: str, new: str) -> Callable[[Editor], None]:
    return lambda editor: editor.rename(kind, old, new)


def inserted(key: str, type_: str, payload: bytes) -> Callable[[Editor], None]:
    return lambda editor: editor.insert(key, type_, payload)


def twice_the_same_token(editor: Editor) -> None:
    span = editor.find("value", "tokenizer.ggml.tokens")
    first = editor.data.index(text("!"), span.begin)
    editor.data[first + 8 : first + 9] = b'"'


CRAFTED: dict[str, tuple[Callable[[Editor], None], str]] = {
    "zero dimension": (put("dim", TENSOR, 0), TENSOR),
    "negative dimension": (put("dim", TENSOR, -64), TENSOR),
    "overflowing dimensions": (put("dim", TENSOR, 1 << 62), TENSOR),
    "dimensions whose product wraps to the right size": (put("dim", TENSOR, (1 << 63) + 64), TENSOR),
    "gigantic dimension": (put("dim", TENSOR, 1 << 40), TENSOR),
    "five dimensions": (put("n_dims", TENSOR, 5), TENSOR),
    "four billion dimensions": (put("n_dims", TENSOR, -1), TENSOR),
    "removed tensor type": (put("tensor_type", TENSOR, 4), TENSOR),
    "unknown tensor type": (put("tensor_type", TENSOR, 12345), ""),
    "negative tensor type": (put("tensor_type", TENSOR, -1), ""),
    "integer weights": (put("tensor_type", TENSOR, 26), TENSOR),
    "norm as F16": (put("tensor_type", NORM, 1), ""),
    "overlapping tensors": (put("offset", TENSOR, 0), TENSOR),
    "tensor beyond the end": (put("offset", TENSOR, 1 << 40), TENSOR),
    "tensor at the last byte of the address space": (put("offset", TENSOR, -1), TENSOR),
    "duplicate tensor": (renamed("tensor_name", "blk.1.attn_norm.weight", NORM), NORM),
    "missing tensor": (renamed("tensor_name", "output_norm.weight", "output_worm.weight"), "output_norm"),
    "duplicate key": (inserted("llama.block_count", "u32", U32(2)), "llama.block_count"),
    "absurd array length": (put("count", "tokenizer.ggml.tokens", 1 << 40), "tokenizer.ggml.tokens"),
    "array length that overflows": (
        put("count", "tokenizer.ggml.token_type", (1 << 62) + 1),
        "tokenizer.ggml.token_type",
    ),
    "absurd string length": (inserted("general.note", "str", struct.pack("<Q", 1 << 40)), "general.note"),
    "string length that overflows": (inserted("general.note", "str", struct.pack("<Q", (1 << 64) - 8)), "general.note"),
    "nested array": (put("type", "tokenizer.ggml.tokens", 9, index=1), "tokenizer.ggml.tokens"),
    "unknown value type": (put("type", "llama.block_count", 13), "llama.block_count"),
    "tokens are numbers": (
        replaced("tokenizer.ggml.tokens", "arr", struct.pack("<IQIIII", 5, 4, 1, 2, 3, 4)),
        "tokens",
    ),
    "no tokens": (replaced("tokenizer.ggml.tokens", "arr", struct.pack("<IQ", 8, 0)), "tokens"),
    "tokens is not an array": (replaced("tokenizer.ggml.tokens", "str", text("a b c")), "tokens"),
    "twice the same token": (twice_the_same_token, "twice"),
    "too few token types": (replaced("tokenizer.ggml.token_type", "arr", struct.pack("<IQI", 5, 1, 1)), "token_type"),
    "token types are floats": (put("type", "tokenizer.ggml.token_type", 6, index=1), "token_type"),
    "scores for one token": (inserted("tokenizer.ggml.scores", "arr", struct.pack("<IQf", 6, 1, 0.0)), "scores"),
    "merges are numbers": (replaced("tokenizer.ggml.merges", "arr", struct.pack("<IQI", 5, 1, 1)), "merges"),
    "no merges": (renamed("key", "tokenizer.ggml.merges", "tokenizer.ggml.merged"), "merges"),
    "no vocabulary": (renamed("key", "tokenizer.ggml.tokens", "tokenizer.ggml.tokenz"), "tokenizer.ggml.tokens"),
    "missing tokenizer": (renamed("key", "tokenizer.ggml.model", "tokenizer.ggml.modem"), "tokenizer.ggml.model"),
    "unknown tokenizer": (replaced("tokenizer.ggml.model", "str", text("abacus")), "abacus"),
    "unknown pre-tokenizer": (replaced("tokenizer.ggml.pre", "str", text("abacus")), "abacus"),
    "a vocabulary of two billion dummies": (
        lambda editor: (
            put("value", "llama.vocab_size", 0x7FFFFFFF)(editor),
            replaced("tokenizer.ggml.model", "str", text("none"))(editor),
        )[0],
        "llama.vocab_size",
    ),
    "unknown architecture": (replaced("general.architecture", "str", text("abacus")), "abacus"),
    "missing architecture": (renamed("key", "general.architecture", "general.architectura"), "general.architecture"),
    "architecture is a number": (replaced("general.architecture", "u32", U32(1)), "general.architecture"),
    "no layers": (put("value", "llama.block_count", 0), "llama.block_count"),
    "too many layers": (put("value", "llama.block_count", 513), "llama.block_count"),
    "layers of another type": (put("type", "llama.block_count", 6), "llama.block_count"),
    "embeddings of length zero": (put("value", "llama.embedding_length", 0), "llama.embedding_length"),
    "gigantic embeddings": (put("value", "llama.embedding_length", 1 << 30), "llama.embedding_length"),
    "no heads": (put("value", "llama.attention.head_count", 0), ""),
    "heads that do not divide": (put("value", "llama.attention.head_count", 3), ""),
    "no heads for keys": (put("value", "llama.attention.head_count_kv", 0), "head_count_kv"),
    "more heads for keys than heads": (put("value", "llama.attention.head_count_kv", 64), "head_count_kv"),
    "different heads for each of a million layers": (
        replaced("llama.attention.head_count", "arr", struct.pack("<IQ", 4, 10000) + U32(4) * 10000),
        "head_count",
    ),
    "rope beyond the head": (put("value", "llama.rope.dimension_count", 1 << 20), "rope.dimension_count"),
    "odd rope": (put("value", "llama.rope.dimension_count", 15), "rope.dimension_count"),
    "unknown rope scaling": (inserted("llama.rope.scaling.type", "str", text("abacus")), ""),
    "negative epsilon": (put("value", "llama.attention.layer_norm_rms_epsilon", -1.0), "epsilon"),
    "epsilon is not a number": (put("value", "llama.attention.layer_norm_rms_epsilon", float("nan")), "epsilon"),
    "too many experts": (inserted("llama.expert_count", "u32", U32(1 << 20)), "llama.expert_count"),
    "more experts used than there are": (inserted("llama.expert_used_count", "u32", U32(2)), "llama.expert_used_count"),
    "context of four billion tokens": (put("value", "llama.context_length", 0xFFFFFFFE), "llama.context_length"),
    "unknown pooling": (inserted("llama.pooling_type", "u32", U32(77)), "llama.pooling_type"),
    "alignment zero": (inserted("general.alignment", "u32", U32(0)), "general.alignment"),
    "alignment 48": (inserted("general.alignment", "u32", U32(48)), "general.alignment"),
    "alignment of two billion": (inserted("general.alignment", "u32", U32(1 << 31)), "past the end"),
    "alignment of another type": (inserted("general.alignment", "f32", U32(0)), "general.alignment"),
    "chat template is a number": (replaced("tokenizer.chat_template", "u32", U32(7)), "tokenizer.chat_template"),
    "one part of three": (inserted("split.count", "u16", struct.pack("<H", 3)), "split.count"),
}


@pytest.mark.parametrize("name", CRAFTED)
def test_crafted(good: Path, tmp_path: Path, name: str) -> None:
    edit, word = CRAFTED[name]
    editor = Editor(good)
    edit(editor)
    path = tmp_path / "crafted.gguf"
    path.write_bytes(editor.data)
    refused(path, word)


def test_editing_alone_does_no_harm(good: Path, tmp_path: Path) -> None:
    """The crafted files are refused for what they say, not for how they were made."""
    editor = Editor(good)
    replaced("llama.block_count", "u32", U32(2))(editor)
    editor.insert("general.note", "str", text("hello"))
    path = tmp_path / "edited.gguf"
    path.write_bytes(editor.data)
    use(path)


def test_split_whose_second_part_is_missing(good: Path, tmp_path: Path) -> None:
    editor = Editor(good)
    editor.insert("split.count", "u16", struct.pack("<H", 2))
    path = tmp_path / "model-00001-of-00002.gguf"
    path.write_bytes(editor.data)
    refused(path, "model-00002-of-00002.gguf", "no such file")


def test_special_tokens_out_of_range_are_ignored(good: Path, tmp_path: Path) -> None:
    editor = Editor(good)
    for key in ("bos", "eos", "padding", "unknown"):
        editor.put("value", f"tokenizer.ggml.{key}_token_id", 0xFFFFFFF0)
    path = tmp_path / "special.gguf"
    path.write_bytes(editor.data)
    use(path)


@pytest.mark.parametrize("maker", [models.lora, models.mmproj])
def test_other_kinds_of_files_are_no_models(good: Path, maker: Callable[[Path], Path]) -> None:
    refused(maker(DIRECTORY))


def test_failed_loads_leave_nothing_behind(good: Path, tmp_path: Path) -> None:
    """Also those that get past the check and fail late."""
    late, path = Editor(good), tmp_path / "late.gguf"
    late.rename("tensor_name", "output_norm.weight", "output_worm.weight")
    path.write_bytes(late.data)
    used = []
    for _ in range(300):
        with pytest.raises(pyggml.ModelLoadError):
            pyggml.Model(path).close()
        used.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    assert used[-1] - used[99] < 4096  # KiB


# -- damage --------------------------------------------------------------------------------------------------------------


def damages(path: Path, seed: int) -> Iterator[tuple[int, bytes]]:
    """Every byte before the tensor data flipped once (of long arrays a few), and every number replaced by awkward ones."""
    dice = random.Random(seed)
    data = path.read_bytes()
    values = [0, 1, -1, 0x7FFFFFFF, 0x80000000, 1 << 63]
    for span in models.read_layout(path).spans:
        size = span.end - span.begin
        for offset in (
            range(span.begin, span.end) if size <= 64 else sorted(dice.sample(range(span.begin, span.end), 16))
        ):
            yield offset, bytes([data[offset] ^ (1 << dice.randrange(8))])
        if size in (4, 8) and span.kind not in ("key", "tensor_name"):
            for value in dice.sample(values, 3):
                yield span.begin, (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def damage_and_use(maker: str, path: Path, seed: int) -> None:
    """Run in a process of its own. Each damage is printed before it is tried, so that a crash tells which it was."""
    source = MAKERS[maker](DIRECTORY)
    base = pyggml.Model(MAKERS["llama"](DIRECTORY)) if maker == "lora" else None
    path.write_bytes(source.read_bytes())
    counts = {"refused": 0, "used": 0}
    with open(path, "r+b", buffering=0) as file:
        for offset, damage in damages(source, seed):
            print(offset, damage.hex(), flush=True)
            file.seek(offset)
            whole = file.read(len(damage))
            file.seek(offset)
            file.write(damage)
            start = time.perf_counter()
            try:
                if base:
                    pyggml.LoraAdapter(base, path).close()
                else:
                    use(path)
                counts["used"] += 1
            except pyggml.PyggmlError as error:
                assert time.perf_counter() - start < 1.0, error
                assert str(path) in str(error), error
                counts["refused"] += 1
            file.seek(offset)
            file.write(whole)
    if base:
        base.close()
    else:
        use(path)  # nothing of that has harmed this process
    print(counts)


@pytest.mark.parametrize("maker", MAKERS)
def test_damage_never_crashes(maker: str, tmp_path: Path) -> None:
    program = (
        f"import sys, pathlib; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_bad_files; "
        "test_bad_files.damage_and_use(sys.argv[1], pathlib.Path(sys.argv[2]), seed=1)"
    )
    with open(tmp_path / "output", "w+") as output:
        process = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", program, maker, str(tmp_path / "damaged.gguf")],
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            timeout=300,
        )
        output.seek(0)
        lines = output.read().splitlines()
    assert process.returncode == 0, (process.returncode, lines[-1:], process.stderr[-3000:])
    assert len(lines) > 500 and "'used': 0" not in lines[-1], lines[-1]


def test_the_process_is_still_fine(good: Path) -> None:
    with pyggml.Model(good) as model, model.context(n_ctx=128) as context:
        assert len("".join(itertools.islice(context.generate("Hello", max_tokens=8, temperature=0.0), 8))) > 0
