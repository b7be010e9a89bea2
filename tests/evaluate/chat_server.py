"""A chat endpoint on this machine that gives scripted replies and remembers what it was asked."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class ChatServer:
    """Hold the replies still to give, the last of which is given for ever, and the requests that came."""

    replies: list[Reply] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    url: str = ""

    @property
    def attempts(self) -> int:
        return len(self.bodies)

    def then(self, *replies: Reply) -> None:
        self.replies[:] = replies


@contextmanager
def chat_server() -> Iterator[ChatServer]:
    state = ChatServer()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            state.paths.append(self.path)
            state.headers.append(dict(self.headers))
            state.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            (state.replies.pop(0) if len(state.replies) > 1 else state.replies[0])(self)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def status(code: int, body: bytes = b"", **headers: str) -> Reply:
    def reply(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return reply


def says(text: object) -> Reply:
    completion = {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}}]}
    return status(200, json.dumps(completion).encode())


def cut_off(handler: BaseHTTPRequestHandler) -> None:
    """Promise more bytes than come."""
    handler.send_response(200)
    handler.send_header("Content-Length", "500")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [{"message": {"content": "CORR')


def hangs_up(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True


def sleeps(seconds: float) -> Reply:
    return lambda handler: time.sleep(seconds)
