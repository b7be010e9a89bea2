"""Ask an OpenAI-compatible chat endpoint one thing, once; say of a failure whether to try again.

POST {base_url}/chat/completions with one user message. The key comes from the environment, COMEM_JUDGE_KEY, and is in
no message, file or cache; without it no key is sent, as local servers want it. Proxies of the environment are used.
"""

from __future__ import annotations

import email.utils
import json
import os
import re
import time
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

import httpx2

from comem_cli.errors import UsageError

KEY_VARIABLE = "COMEM_JUDGE_KEY"
_AGAIN = frozenset({408, 409, 425, 429})  # and every 5xx
_SETTINGS = {
    401: f"set {KEY_VARIABLE} to a key of that endpoint",
    403: f"set {KEY_VARIABLE} to a key that may use this model",
    404: "check the base URL, which ends in /v1 for most servers, and the name of the model",
}


class NoReplyError(Exception):
    """Say that one request brought no reply; `again`: another try may; wait_s: what the server asked for, in s."""

    def __init__(self, reason: str, *, again: bool, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.again = again
        self.wait_s = wait_s


@dataclass(frozen=True)
class Endpoint:
    """Name a model behind a chat API and how it is asked; a setting that is None is not sent.

    base_url: without /chat/completions. seed: 1 as in the paper (B.2), which sets no temperature. timeout_s: for the
    connection, and for each wait for further bytes.
    """

    base_url: str
    model: str
    temperature: float | None = 0.0
    seed: int | None = 1
    max_tokens: int | None = 64
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        """Raise UsageError (2) for a URL that is not http(s), or no model."""
        try:
            parts = urlsplit(self.base_url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:  # a port that is no number, brackets that do not close
            usable = False
        if not usable:
            raise UsageError("the judge's base URL is no http(s) URL", "pass one such as https://api.openai.com/v1")
        if not self.model:
            raise UsageError("the judge has no model", "name the model as its endpoint calls it")

    @property
    def host(self) -> str:
        """Return the host and port, for messages: a URL may carry a password."""
        return urlsplit(self.base_url).netloc.rpartition("@")[2]

    def body(self, prompt: str) -> bytes:
        """Return the request as JSON in ASCII."""
        settings = {"temperature": self.temperature, "seed": self.seed, "max_tokens": self.max_tokens}
        sent = {name: value for name, value in settings.items() if value is not None}
        return json.dumps({"model": self.model, "messages": [{"role": "user", "content": prompt}], **sent}).encode()


class ChatClient:
    """Hold the connection to an endpoint; close it."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Read the key; raises UsageError (2) for one that no header can carry."""
        self.endpoint = endpoint
        headers = {"Content-Type": "application/json"}
        key = os.environ.get(KEY_VARIABLE, "").strip()
        if not re.fullmatch(r"[!-~]*", key):
            raise UsageError(f"{KEY_VARIABLE} holds blanks or letters beyond ASCII", "set it to the key alone")
        if key:
            headers["Authorization"] = f"Bearer {key}"
        self._client = httpx2.Client(timeout=endpoint.timeout_s, headers=headers)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def ask(self, prompt: str) -> str:
        """Return the text of the reply.

        Raises: NoReplyError; UsageError (2) where the endpoint refuses every request: its key, URL or model.
        """
        try:
            url = f"{self.endpoint.base_url.rstrip('/')}/chat/completions"
            response = self._client.post(url, content=self.endpoint.body(prompt))
        except httpx2.TimeoutException as error:
            raise NoReplyError("timeout", again=True) from error
        except httpx2.RequestError as error:  # no connection, a body cut off, a broken encoding
            raise NoReplyError(type(error).__name__, again=True) from error
        status = response.status_code
        if status in _SETTINGS or 300 <= status < 400:
            hint = _SETTINGS.get(status, "pass the base URL that it redirects to")
            raise UsageError(f"the judge at {self.endpoint.host} answered {_named(status)}", hint)
        if status != HTTPStatus.OK:
            again = status in _AGAIN or status >= 500
            raise NoReplyError(
                _named(status), again=again, wait_s=_retry_after(response.headers.get("Retry-After", ""))
            )
        return _content(response.content)


def _content(body: bytes) -> str:
    """Return choices[0].message.content."""
    try:
        content = json.loads(body)["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise NoReplyError("a body that is no chat completion", again=True) from error
    if not isinstance(content, str):
        raise NoReplyError("a reply without text", again=True)
    return content


def _retry_after(value: str) -> float:
    """Read s, or an HTTP date; 0 for anything else, or a time that is past."""
    if re.fullmatch(r"[0-9]{1,9}", value):
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError):  # no date: our own back-off holds
        return 0.0


def _named(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:  # a number that no standard names
        return str(status)
