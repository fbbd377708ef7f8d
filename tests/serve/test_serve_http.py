"""What pyggml-serve answers: the clients that people use, the routes, errors, keys, limits."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import anthropic
import httpx
import models
import openai
import pytest
from engines import GREEDY, MODELS, wait_until
from serving import Server, generating, tiny
from support import ROOT

from pyggml.engine import routes

KEY = "correct-horse"
MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("serve") / "log"
    with Server(tiny(), "-c", "4096", "-np", "2", "--metrics", "--props", "--body-limit", "1", log=log) as server:
        yield server.ready()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("guarded") / "log"
    words = ["--api-key", f"other,{KEY}", "--api-prefix", "/llm/", "--cors-origins", "localhost", "--timeout", "1"]
    with Server(tiny(), "-c", "4096", *words, log=log) as server:
        yield server.ready()


# -- clients -------------------------------------------------------------------------------------------------------------


def test_the_openai_client(server: Server) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        model = client.models.list().data[0].id
        answer = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=12, **GREEDY)
        text = answer.choices[0].message.content
        assert answer.usage.completion_tokens == 12 and answer.choices[0].finish_reason == "length"
        stream = client.chat.completions.create(
            model=model, messages=MESSAGES, max_tokens=12, stream=True, stream_options={"include_usage": True}, **GREEDY
        )
        chunks = list(stream)
        assert "".join(one.choices[0].delta.content or "" for one in chunks if one.choices) == text
        assert len(chunks) > 5 and chunks[-1].usage.completion_tokens == 12
        plain = client.completions.create(model=model, prompt="one two", max_tokens=5, **GREEDY)
        assert plain.usage.completion_tokens == 5
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model=model, messages="no")
        assert caught.value.status_code == 400


def test_the_example_of_the_documentation(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "serve.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    assert "http://127.0.0.1:8080" in code
    exec(code.replace("http://127.0.0.1:8080", server.url), {})
    assert capsys.readouterr().out.strip()


def test_the_openai_client_embeds(tmp_path: Path) -> None:
    with (
        Server(models.bert(MODELS), "--embeddings", log=tmp_path / "log") as server,
        openai.OpenAI(base_url=f"{server.ready().url}/v1", api_key="none") as client,
    ):
        answer = client.embeddings.create(model="any", input=["one", "two three"])
        assert [len(one.embedding) for one in answer.data] == [64, 64]
        assert sum(one**2 for one in answer.data[1].embedding) == pytest.approx(1, rel=1e-3)


def test_the_anthropic_client(server: Server) -> None:
    with anthropic.Anthropic(base_url=server.url, api_key="none") as client:
        answer = client.messages.create(model="any", max_tokens=8, messages=MESSAGES)
        assert answer.usage.output_tokens == 8 and answer.stop_reason == "max_tokens"
        with client.messages.stream(model="any", max_tokens=8, messages=MESSAGES) as stream:
            assert "".join(stream.text_stream)
        assert client.messages.count_tokens(model="any", messages=MESSAGES).input_tokens > 0


# -- routes --------------------------------------------------------------------------------------------------------------


def test_every_route_of_the_engine_is_there(server: Server) -> None:
    for method, path in routes():
        answer = server.client.request(
            method, path.replace(":id_slot", "0"), content=b"{}" if method == "POST" else None
        )
        assert answer.status_code not in (404, 405, 500), (method, path, answer.text)
        if answer.status_code >= 400:
            assert set(answer.json()["error"]) == {"message", "type", "code"}


def test_a_stream_comes_in_pieces(server: Server) -> None:
    body = {"prompt": "one", "n_predict": 500, "ignore_eos": True, "stream": True}
    with server.client.stream("POST", "/completion", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-accel-buffering"] == "no" and "content-length" not in response.headers
        pieces = list(response.iter_raw())
    assert len(pieces) > 50 and b'"stop":true' in pieces[-1] + pieces[-2]


def test_many_at_once_get_what_one_gets(server: Server) -> None:
    def ask(prompt: str) -> str:
        return str(server.post("/completion", json={"prompt": prompt, "n_predict": 10, **GREEDY}).json()["content"])

    prompts = [f"prompt number {number}" for number in range(12)]
    alone = [ask(one) for one in prompts]
    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(ask, prompts)) == alone


def test_query_and_path_reach_the_engine(server: Server) -> None:
    answer = server.post("/slots/0?action=nonsense", json={})
    assert answer.status_code in (400, 501)
    assert server.get("/slots?fail_on_no_slot=1").status_code == 200


def test_metrics_and_props(server: Server) -> None:
    text = server.get("/metrics").text
    assert "llamacpp:prompt_tokens_total" in text
    assert re.search(r"^pyggml:sleeps_total 0$", text, re.M) and "pyggml:last_wake_seconds" not in text
    names = [line.split()[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(names) == len(set(names))
    props = server.get("/props").json()
    assert props["total_slots"] == 2 and props["sleep"]["mode"] == "reset" and props["sleep"]["last"] is None


def test_a_form_with_a_file_reaches_the_engine(server: Server) -> None:
    files = {"file": ("a.wav", b"RIFF", "audio/wav")}
    answer = server.post("/v1/audio/transcriptions", files=files, data={"model": "any"})
    assert answer.status_code in (400, 501) and answer.json()["error"]["message"]
    broken = server.post("/v1/audio/transcriptions", content=b"x", headers={"content-type": "multipart/form-data"})
    assert broken.status_code == 400 and "form" in broken.json()["error"]["message"]


# -- errors --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/", b"", 404),
        ("GET", "/nothing", b"", 404),
        ("POST", "/slots/:id_slot", b"{}", 404),
        ("GET", "/slots/0/1", b"", 404),
        ("POST", "/slots/0%3Faction=erase", b"{}", 404),
        ("POST", "/models/load", b"{}", 404),
        ("GET", "/completion", b"", 405),
        ("GET", "/sleep", b"", 405),
        ("DELETE", "/props", b"", 405),
        ("POST", "/completion", b"{ secret", 400),
        ("POST", "/completion", b"", 400),
        ("POST", "/v1/chat/completions", b"[1]", 400),
        ("POST", "/sleep", b"{", 400),
        ("POST", "/sleep", b"[" * 100_000, 400),
        ("POST", "/sleep", b'{"mode": 1}', 400),
        ("POST", "/sleep", b'{"mode": "deep"}', 400),
        ("POST", "/sleep", b'{"level": 1}', 400),
        ("POST", "/sleep", b'{"timeout": "x"}', 400),
        ("POST", "/sleep", b'{"mode": "restart"}', 501),
        ("POST", "/tokenize?a=%00", b"{}", 400),
        ("POST", "/completion", b" " * (1 << 20) + b"{}", 413),
    ],
)
def test_what_is_wrong_is_answered(server: Server, method: str, path: str, body: bytes, status: int) -> None:
    answer = server.client.request(method, path, content=body)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["code"] == status and error["message"] and error["type"]
    assert "secret" not in answer.text
    if status == 405:
        assert answer.headers["allow"]
    assert server.get("/health").status_code == 200


def test_a_chunked_body_has_the_same_limit(server: Server) -> None:
    answer = server.post("/completion", content=iter([b" " * 100_000] * 20))
    assert answer.status_code == 413
    assert server.post("/tokenize", content=iter([b'{"content":', b'"a"}'])).json()["tokens"]


def test_a_body_that_does_not_come_in_time(guarded: Server) -> None:
    where = urlsplit(guarded.url)
    with socket.create_connection((where.hostname, where.port), 10) as one:
        one.sendall(
            f"POST /llm/tokenize HTTP/1.1\r\nhost: a\r\nx-api-key: {KEY}\r\ncontent-length: 5\r\n\r\n{{".encode()
        )
        assert b" 408 " in one.recv(4096)


# -- keys, prefix, origins -----------------------------------------------------------------------------------------------


def test_keys_and_prefix(guarded: Server) -> None:
    assert guarded.url.endswith("/llm")
    assert guarded.get("/health").status_code == guarded.get("/v1/health").status_code == 200
    for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": KEY[:-1]}, {"authorization": "Bearer \xff"}):
        for path in ("/props", "/models", "/is_sleeping", "/nothing"):
            encoded = {name: value.encode("latin-1") for name, value in headers.items()}
            answer = guarded.get(path, headers=encoded)
            assert answer.status_code == 401 and answer.json()["error"]["type"] == "authentication_error"
    assert guarded.post("/sleep").status_code == 401
    for headers in ({"authorization": f"Bearer {KEY}"}, {"x-api-key": KEY}, {"x-api-key": "other"}):
        assert guarded.get("/props", headers=headers).status_code == 200
    outside = httpx.get(guarded.url.removesuffix("/llm") + "/health", trust_env=False)
    assert outside.status_code == 404
    guarded.get(f"/props?key={KEY}")
    assert KEY not in guarded.text() and "/llm/props" in guarded.text()


def test_origins(server: Server, guarded: Server) -> None:
    origin = {"origin": "http://localhost:3000"}
    assert guarded.get("/health", headers=origin).headers["access-control-allow-origin"] == origin["origin"]
    foreign = {"origin": "http://localhost.example.com"}
    assert "access-control-allow-origin" not in guarded.get("/health", headers=foreign).headers
    assert server.get("/health", headers=foreign).headers["access-control-allow-origin"] == foreign["origin"]
    asked = guarded.client.options("/props", headers=origin)
    assert asked.status_code == 200 and "POST" in asked.headers["access-control-allow-methods"]


# -- clients that go away ------------------------------------------------------------------------------------------------


def test_a_client_that_leaves_its_stream_frees_the_slot(server: Server) -> None:
    with generating(server):
        assert server.busy() == 1
    start = time.monotonic()
    wait_until(lambda: server.busy() == 0, 5)
    assert time.monotonic() - start < 1.0


def test_a_client_that_leaves_a_plain_request_frees_the_slot(server: Server) -> None:
    where = urlsplit(server.url)
    body = json.dumps({"prompt": "one", "n_predict": 100_000, "ignore_eos": True}).encode()
    with socket.create_connection((where.hostname, where.port), 10) as one:
        head = f"POST /completion HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n\r\n"
        one.sendall(head.encode() + body)
        wait_until(lambda: server.busy() == 1, 5)
    start = time.monotonic()
    wait_until(lambda: server.busy() == 0, 5)
    assert time.monotonic() - start < 1.0
    assert "the client went away" in server.text()


def test_a_client_that_does_not_read_is_cut_off(guarded: Server) -> None:
    where = urlsplit(guarded.url)
    body = json.dumps({"prompt": "one", "n_predict": 4000, "n_probs": 40, "ignore_eos": True, "stream": True}).encode()
    key = {"x-api-key": KEY}
    with socket.create_connection((where.hostname, where.port), 10) as one:
        head = f"POST /llm/completion HTTP/1.1\r\nhost: a\r\nx-api-key: {KEY}\r\ncontent-length: {len(body)}\r\n\r\n"
        one.sendall(head.encode() + body)
        wait_until(lambda: "POST /llm/completion 200" in guarded.text(), 15)
        wait_until(lambda: not any(slot["is_processing"] for slot in guarded.get("/slots", headers=key).json()), 2)
    last = next(line for line in guarded.text().splitlines() if "POST /llm/completion 200" in line)
    assert "the client went away" in last


def test_idle_connections_are_in_nobodys_way(server: Server) -> None:
    where = urlsplit(server.url)
    idle = [socket.create_connection((where.hostname, where.port), 10) for _ in range(500)]
    try:
        assert server.post("/tokenize", json={"content": "a"}).status_code == 200
    finally:
        for one in idle:
            one.close()


def test_a_conversation_goes_on_without_its_reader(server: Server) -> None:
    body = {"prompt": "one", "n_predict": 200, "ignore_eos": True, "stream": True}
    headers = {"x-conversation-id": "c1"}
    with server.client.stream("POST", "/completion", json=body, headers=headers) as response:
        next(response.iter_raw())
    again = server.get("/v1/stream?conv_id=c1")
    last = json.loads(again.text.strip().splitlines()[-1].removeprefix("data: "))
    assert again.status_code == 200 and last["stop"] and last["tokens_predicted"] == 200


def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    with Server(tiny(), "--host", path, log=tmp_path / "log") as server:
        assert server.url == f"unix://{path}"
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://a", timeout=20) as client:
            wait_until(lambda: client.get("/health").status_code == 200, 20)
            assert client.post("/tokenize", json={"content": "a"}).json()["tokens"]
        server.signal()
        assert server.process.wait(10) == 0
        assert not path.exists()
