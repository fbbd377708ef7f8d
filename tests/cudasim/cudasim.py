"""The simulated CUDA from a test's point of view: build it, run programs on it, read what is left on its cards.

>>> sim = CudaSim(build(), tmp_path / "card", devices=2, cc=86)
>>> subprocess.run([...], env=sim.env(), check=True)
>>> sim.report().contexts
0
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import headers

SOURCE = Path(__file__).resolve().parent
BUILD = SOURCE.parents[1] / "build" / "cudasim"


def build(directory: Path = BUILD) -> Path:
    """Builds the libraries (incremental) and returns the directory they are in; several processes may call it at once."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _build(directory)
    return directory


def _build(directory: Path) -> None:
    include = headers.cuda_root(directory / "headers") / "include"
    hip = headers.hip_include(directory / "headers")
    configure = ["cmake", "-S", str(SOURCE), "-B", str(directory), "-G", "Ninja", f"-DCUDA_INCLUDE_DIR={include}"]
    configure.append(f"-DHIP_INCLUDE_DIR={hip or ''}")
    for command in (configure, ["cmake", "--build", str(directory), "--parallel", "2"]):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise RuntimeError(f"building the simulated CUDA failed: {' '.join(command)}\n{done.stdout}")


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """What one process has on one device. Bytes: ``bytes`` = ``allocated`` + ``context`` + ``residual``."""

    pid: int
    bytes: int
    allocated: int
    context: int
    residual: int
    active: bool
    contexts_created: int
    live: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Device:
    """A simulated card, in physical order."""

    index: int
    name: str
    uuid: str
    pci: str
    total: int
    used: int
    lost: bool
    processes: tuple[ProcessUse, ...]


@dataclass(frozen=True, slots=True)
class ContextEvent:
    """A context was created: where, by whom, and by which API call."""

    pid: int
    device: int
    generation: int
    api: str


@dataclass(frozen=True, slots=True)
class Report:
    """The state of all cards and processes; ``stale`` and ``misuse`` (faults by kind and name) outlive the processes."""

    bytes: int
    contexts: int
    live: Mapping[str, int]
    stale: Mapping[str, Mapping[str, int]]
    stale_total: int
    misuse: Mapping[str, Mapping[str, int]]
    misuse_total: int
    devices: tuple[Device, ...]
    context_events: tuple[ContextEvent, ...]
    contexts_created: int
    pid: int | None = None
    launches: int | None = None
    trace: str | None = None

    @property
    def clean(self) -> bool:
        """Nothing lives, nothing is held, nothing was used wrongly."""
        return not (self.bytes or self.contexts or self.live or self.stale_total or self.misuse_total)

    @staticmethod
    def from_json(text: str) -> Report:
        raw: dict[str, Any] = json.loads(text)
        devices = []
        for device in raw.pop("devices"):
            processes = tuple(ProcessUse(**process) for process in device.pop("processes"))
            devices.append(Device(**device, processes=processes))
        events = tuple(ContextEvent(**event) for event in raw.pop("context_events"))
        return Report(**raw, devices=tuple(devices), context_events=events)


class CudaSim:
    """Simulated cards whose state lives in ``shm``; every process that is started with :meth:`env` shares them.

    ``options`` are the ``CUDASIM_*`` switches in lower case (``devices=2, memory_mib=4096``), see the README.
    """

    def __init__(self, library_dir: Path, shm: Path, **options: object) -> None:
        self.library_dir = library_dir
        self.shm = shm
        self.options = options
        # The core library alone: it reads a state file without joining it and touches nothing of CUDA here.
        self._core = ctypes.CDLL(str(library_dir / "libcudasim.so"))
        self._core.cudasim_report_file.restype = ctypes.c_size_t
        self._core.cudasim_report_file.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]

    def env(self, base: Mapping[str, str] | None = None, /, **options: object) -> dict[str, str]:
        """The environment for a process that is to run on these cards; ``options`` add to those of the object."""
        env = dict(os.environ if base is None else base)
        path = env.get("LD_LIBRARY_PATH")
        env["LD_LIBRARY_PATH"] = f"{self.library_dir}:{path}" if path else str(self.library_dir)
        env["CUDASIM_SHM"] = str(self.shm)
        for name, value in {**self.options, **options}.items():
            env[f"CUDASIM_{name.upper()}"] = str(int(value) if isinstance(value, bool) else value)
        return env

    @contextmanager
    def occupy(self, size: int, device: int = 0) -> Iterator[int]:
        """Another process has ``size`` bytes of a card (and its context) meanwhile; gives its pid."""
        code = (
            "import ctypes, sys; rt, p = ctypes.CDLL('libcudart.so.13'), ctypes.c_void_p()\n"
            f"if rt.cudaSetDevice({device}) or rt.cudaMalloc(ctypes.byref(p), ctypes.c_size_t({size})): sys.exit(1)\n"
            "print('ready', flush=True); sys.stdin.read()"
        )
        pipe = subprocess.PIPE
        with subprocess.Popen(
            [sys.executable, "-c", code], env=self.env(), stdin=pipe, stdout=pipe, text=True
        ) as process:
            assert process.stdout
            if process.stdout.readline() != "ready\n":
                raise MemoryError(f"no room for {size} bytes on simulated device {device}")
            yield process.pid  # leaving the block closes its input, at which it ends

    def lose_device(self, index: int) -> None:
        """The card (physical index) falls off the bus now, for every process."""
        if not self._core.cudasim_lose_device_file(os.fsencode(self.shm), index):
            raise ValueError(f"there is no simulated device {index}")

    def report(self) -> Report:
        """What is on the cards now, seen from outside: what an ended process had is gone. No devices before a first use."""
        path = os.fsencode(self.shm)
        size = self._core.cudasim_report_file(path, None, 0)
        if not size:
            raise OSError(f"cannot read the state of the simulated cards: {self.shm}")
        buffer = ctypes.create_string_buffer(size + 4096)  # another process may add a line meanwhile
        self._core.cudasim_report_file(path, buffer, len(buffer))
        return Report.from_json(buffer.value.decode())
