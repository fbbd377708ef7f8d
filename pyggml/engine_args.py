"""The keywords of `Engine` in llama-server's words."""

from __future__ import annotations

import os
from collections.abc import Sequence

from . import checks

Path = str | os.PathLike[str]
_TAKEN = {"-m", "--model", "-mm", "--mmproj", "-md", "--model-draft", "--spec-draft-model"}


def _file(path: Path) -> str:
    checks.check_file(path)
    return os.path.abspath(os.fspath(path))


def _listed(value: str) -> str:
    """One value of a list with commas."""
    return '"' + value.replace('"', '""') + '"' if any(one in value for one in ',"') else value


def arguments(
    path: Path,
    *,
    parallel: int | None,
    ctx_size: int | None,
    n_gpu_layers: int | None,
    embeddings: bool,
    pooling: str | None,
    reranking: bool,
    mmproj: Path | None,
    lora: Sequence[Path | tuple[Path, float]],
    draft: Path | None,
    metrics: bool,
    args: Sequence[str],
) -> list[str]:
    """Raises ModelLoadError for a file that cannot be a model, ValueError for what is said twice."""
    words = checks.items("args", args, "words (str)")
    for one in words:
        checks.string("an argument", one)
        if one in _TAKEN:
            raise ValueError(f"{one}: give the file by the keyword of Engine() that stands for it")
    result = ["--model", _file(path)]
    for name, value in (("--parallel", parallel), ("--ctx-size", ctx_size), ("--n-gpu-layers", n_gpu_layers)):
        if value is not None:
            result += [name, str(checks.integer(name, value, -1, 2**31 - 1))]
    if pooling is not None:
        checks.string("pooling", pooling)
        result += ["--pooling", pooling]
    for name, on in (("--embeddings", embeddings), ("--reranking", reranking), ("--metrics", metrics)):
        if checks.flag(name, on):
            result.append(name)
    if mmproj is not None:
        result += ["--mmproj", _file(mmproj)]
    if draft is not None:
        result += ["--model-draft", _file(draft)]
    adapters = [one if isinstance(one, tuple) else (one, 1.0) for one in checks.items("lora", lora, "adapters")]
    if adapters:
        # one flag for all of them, whose order numbers them
        result += ["--lora-scaled", ",".join(_listed(_scaled(_file(file), scale)) for file, scale in adapters)]
    return [*result, *words]


def _scaled(file: str, scale: float) -> str:
    if ":" in file:
        raise ValueError(f"{file}: llama-server's arguments allow no colon in the path of an adapter")
    return f"{file}:{float(scale)}"
