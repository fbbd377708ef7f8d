"""The server `pyggml-serve`: an `Engine` behind HTTP, which sleeps and wakes. See docs/serve.md."""
