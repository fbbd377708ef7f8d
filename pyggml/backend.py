"""Backends: loading them, and giving back what they hold."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from . import checks, foreign, log, memory
from ._native import ffi, lib, reason, text
from .device import Device
from .errors import BackendInUseError, ClosedError, PyggmlError
from .lifecycle import changed, check_process, device_handles, openings
from .resource import Resource, open_resources


class Verdict(StrEnum):
    """What freeing a device came to."""

    RELEASED = "released"  # its backend says that this process has nothing left on it
    UNVERIFIED = "unverified"  # its backend released it, and cannot tell whether something is left
    RESIDUAL = "residual"  # something is left, or its release failed and nobody can tell
    UNLOADED = "unloaded, nothing released"  # its backend cannot release anything, and is only out of use


_LIBRARIES = {"base", "llama", "llama-common", "mtmd", "shim"}  # beside the backends in their directory


@dataclass(frozen=True, slots=True)
class DeviceRelease:
    """What `backend_free()` did to one device. Bytes; None where nobody tells."""

    device: str
    backend: str
    held_before: int | None
    held_after: int | None
    source: str
    """How it was measured."""
    context_active: bool | None
    """Whether this process still has a context on it."""
    verdict: Verdict
    error: int = 0
    """What the release failed with, in the backend's numbers (CUDA's cudaError_t); 0: nothing failed."""


@dataclass(frozen=True, slots=True)
class ReleaseReport:
    """What `backend_free()` did. Without devices there was nothing to free."""

    devices: tuple[DeviceRelease, ...]
    seconds: float

    @property
    def released(self) -> bool:
        """Whether nothing is known to be left of what can be released."""
        return all(one.verdict is not Verdict.RESIDUAL for one in self.devices)

    def __str__(self) -> str:
        lines = [f"{'device':<12} {'backend':<8} {'before':>12} {'after':>12}  {'context':<8} verdict"]
        context = {True: "active", False: "none", None: "unknown"}
        for one in self.devices:
            verdict = f"{one.verdict} (error {one.error})" if one.error else str(one.verdict)
            lines.append(
                f"{one.device:<12} {one.backend:<8} {memory.mib(one.held_before):>12} {memory.mib(one.held_after):>12}"
                f"  {context[one.context_active]:<8} {verdict}"
            )
        return "\n".join([*lines, f"in {self.seconds:.3f} s"])


def load() -> None:
    """Load the backends that are not loaded: those in the package's directory, and those that were freed. Creates no context."""
    check_process()
    with changed:
        if not lib.pyggml_backends_load():
            raise PyggmlError(f"no backend could be loaded: the installation of pyggml is not complete; {reason()}")


def devices() -> list[Device]:
    """The devices that there are. Loads backends that are not loaded, but creates no context on any device."""
    check_process()  # before the lock, which a thread of the parent may have held when it forked
    with changed:
        load()
        return [Device.of(handle) for handle in device_handles()]


def modules() -> dict[str, str]:
    """The backend modules of this installation: "loaded as NAME", or why not."""
    load()
    result = {}
    directory = Path(text(lib.ggml_backend_directory()))
    names = sorted(
        path.name.removeprefix("libpyggml-").removesuffix(".so") for path in directory.glob("libpyggml-*.so")
    )
    variants = [name for name in names if name.split("-")[0] == "cpu"]
    if variants:
        loaded = lib.ggml_backend_reg_by_name(b"CPU")
        result["cpu"] = f"loaded as CPU, the best of {len(variants)}" if loaded else "no variant fits this processor"
    for name in names:
        if name in _LIBRARIES or name in variants:
            continue
        with log.captured() as lines:
            # one that is loaded already is only looked up
            backend = lib.ggml_backend_load(bytes(directory / f"libpyggml-{name}.so"))
        result[name] = (
            f"loaded as {text(lib.ggml_backend_reg_name(backend))}" if backend else "; ".join(lines) or "not loaded"
        )
    return result


def chosen_devices(names: Sequence[str]) -> Any:
    """A NULL-terminated list for C of the devices with these names. Raises ValueError for an unknown name."""
    checks.items("devices", names, "names (str)")
    with changed:
        load()
        return ffi.new("ggml_backend_dev_t[]", [*_by_name(names), ffi.NULL])


def _by_name(names: Sequence[str]) -> list[Any]:
    known = {text(lib.ggml_backend_dev_name(handle)): handle for handle in device_handles()}
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"the name of a device is a str, not {type(name).__name__}")
        if name not in known:
            raise ValueError(f"there is no device {name!r}; there are: {', '.join(known)}")
    return [known[name] for name in names]


def backend_free(devices: Sequence[str] | None = None, *, force: bool = False) -> ReleaseReport:
    """Give back what the backends hold on their devices, contexts included; the next model load brings them back by itself.

    Without `devices` every backend is freed, the CPU's as well; with names only those devices are, and their backends stay.
    May be called by any thread and any number of times; when nothing is loaded it reports nothing. It waits for no load: a model
    that is being loaded is in use like an open one.

    Raises BackendInUseError, which names what is open, and ForeignContextError where another user of the same device is
    detected in this process; then nothing has changed. `force=True` closes what is open first (ending computations that
    run), and resets a device although others use it. Raises ValueError for an unknown device and BufferError if an array
    made with `copy=False` is in the way.

    A release that is tried and fails is told by the report: the device is residual, with the error. It stays loaded and
    usable as far as it works, and may be freed again.
    """
    check_process()
    checks.flag("force", force)
    if devices is not None:
        checks.items("devices", devices, "names (str)")
    with changed:
        if not device_handles():
            return ReleaseReport((), 0.0)
        chosen = device_handles() if devices is None else _by_name(devices)
        start = time.perf_counter()
        _clear_the_way({text(lib.ggml_backend_dev_name(handle)) for handle in chosen}, devices is None, force)
        if not force:
            foreign.check(chosen)
        before = [(Device.of(handle), memory.of_device(handle)) for handle in chosen]
        generations = [_generation(handle) for handle in chosen]
        can_free = [lib.ggml_backend_reg_can_free(lib.ggml_backend_dev_backend_reg(handle)) for handle in chosen]
        with log.captured() as lines:
            if devices is None:
                lib.llama_backend_free()
                stayed = {
                    device.backend for device, _ in before if lib.ggml_backend_reg_by_name(device.backend.encode())
                }
                refused = [device.backend in stayed for device, _ in before]
            else:
                refused = [
                    bool(possible) and not lib.ggml_backend_dev_free(handle)
                    for handle, possible in zip(chosen, can_free, strict=True)
                ]
        # who refuses because of living objects has touched no device; a release that failed has, and the report says so
        names = [device.backend if devices is None else device.name for device, _ in before]
        tried = {
            name
            for name, handle, generation in zip(names, chosen, generations, strict=True)
            if _generation(handle) != generation
        }
        in_use = sorted({name for name, stays in zip(names, refused, strict=True) if stays and name not in tried})
        if in_use:
            what = f"{', '.join(in_use)}: still in use by objects that were made through pyggml.lib"
            raise BackendInUseError("; ".join([what, *lines]), in_use)
        after = [
            _release(handle, device, then, bool(possible))
            for handle, (device, then), possible in zip(chosen, before, can_free, strict=True)
        ]
        return ReleaseReport(tuple(after), time.perf_counter() - start)


def _clear_the_way(names: set[str], everything: bool, force: bool) -> None:
    """Close what uses these devices, or raise and name it."""
    mine = threading.get_ident()
    if force and any(thread == mine for thread, _ in openings.values()):
        raise BackendInUseError("backend_free() was called from within a load", [what for _, what in openings.values()])
    while force and openings:
        changed.wait()
    using = [one for one in open_resources() if one.holds_devices and (everything or _uses(one, names))]
    if not force and (using or openings):
        holders = [repr(one) for one in using] + [what for _, what in openings.values()]
        raise BackendInUseError(
            f"{len(holders)} object(s) are open: {', '.join(holders[:8])}; close them, or call backend_free(force=True)",
            holders,
        )
    for one in using:
        abort = getattr(one, "abort", None)
        if abort is not None:
            with contextlib.suppress(ClosedError):  # by somebody else, meanwhile
                abort()
    for one in using:
        one.close()


def _uses(one: Resource, names: set[str]) -> bool:
    root = one
    while root._parent is not None:
        root = root._parent
    used: set[str] | None = getattr(root, "device_names", None)
    return used is None or bool(used & names)


def _generation(handle: Any) -> int:
    state = memory.device_state(handle)
    return 0 if state is None else int(state.generation)


def _release(handle: Any, device: Device, before: memory.DeviceMemory, can_free: bool) -> DeviceRelease:
    state = memory.device_state(handle)
    if device.type == "cpu":
        then = memory.host(device.name)
        held, source, active, error = then.own, then.source, None, 0
    else:
        held = None if state is None or state.held < 0 else state.held
        active = None if state is None or state.context_active < 0 else bool(state.context_active)
        error = 0 if state is None else int(state.error)
        source = before.source
    if not can_free:
        verdict = Verdict.UNLOADED
    elif active or (held or 0) > 0 or (error and active is None):
        verdict = Verdict.RESIDUAL
    elif active is None and held is None:
        verdict = Verdict.UNVERIFIED
    else:
        verdict = Verdict.RELEASED
    return DeviceRelease(
        device.name,
        device.backend,
        before.own,
        held,
        source,
        active,
        verdict,
        error if verdict is Verdict.RESIDUAL else 0,
    )
