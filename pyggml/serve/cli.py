"""The command `pyggml-serve`."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

from . import flags

_LEVELS = {0: logging.ERROR, 1: logging.ERROR, 2: logging.WARNING, 3: logging.INFO}


def _set_up_logging(verbosity: int) -> None:
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname).1s %(name)s: %(message)s")
    logging.getLogger("pyggml.serve").setLevel(logging.INFO)
    logging.getLogger("pyggml.native").setLevel(_LEVELS.get(verbosity, logging.DEBUG))


def _complain(message: object) -> None:
    print(f"pyggml-serve: {message}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 after SIGTERM or Ctrl+C, 1 for an error (said in one line), 2 for wrong usage, 128 + the signal if a second came."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if {"-h", "--help", "--usage"} & set(words):
        print(flags.help_text())
        return 0
    if "--version" in words:
        import pyggml

        print(f"pyggml-serve {pyggml.__version__}")
        return 0
    try:
        return _serve(flags.parse(words, os.environ))
    except flags.UsageError as error:
        _complain(error)
        print(f"usage: {flags.USAGE}; --help says more", file=sys.stderr)
        return 2
    except OSError as error:
        _complain(error)
        return 1
    except KeyboardInterrupt:
        return 130


def _serve(settings: flags.Settings) -> int:
    try:
        import starlette
        import uvicorn
    except ImportError as error:
        _complain(f"{error.name} is missing; the server needs: pip install 'pyggml[serve]'")
        return 1
    del starlette, uvicorn
    import asyncio

    from .. import demo
    from ..engine import Engine
    from ..errors import PyggmlError
    from .server import Server, close, listen, unix_paths

    _set_up_logging(settings.verbosity)
    sockets = listen(settings)
    paths = unix_paths(sockets)  # uvicorn closes the sockets
    server = Server(settings)
    try:
        path = demo.model_path() if settings.demo else settings.model
        try:
            engine = Engine(
                path, mmproj=settings.mmproj, draft=settings.draft, args=settings.engine_args, env=True, metrics=False,
                sleep_idle_seconds=settings.sleep_idle_seconds, sleep_mode=settings.sleep_mode,
                on_state=server.on_state, wait=False,
            )  # fmt: skip
        except ValueError as error:
            raise flags.UsageError(str(error)) from None
        with engine:
            asyncio.run(server.run(engine, sockets))
    except PyggmlError as error:
        _complain(error)
        return 1
    finally:
        close(sockets, paths)
    if server.failure:
        _complain(f"{path}: {server.failure}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
