"""Between questions and token ids: the prompt template, and text that appears token by token.

Prompts are plain text without a chat template (the paper's §5, Setup). BM25 sees the question alone; the model reads
the template around it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from comem_cli.errors import UsageError

if TYPE_CHECKING:
    import tokenizers

TEMPLATE = "\n\nQuestion: {question}\nAnswer:"
STOP = ("\n\nQuestion:", "\nQuestion:")  # a model that goes on to invent the next question has answered this one


def render(template: str, question: str) -> str:
    """Put the question into the template; raises UsageError (2) where there is no place or no question."""
    if not question.strip():
        raise UsageError("the question is empty", 'comem ask STORE "what do you want to know?"')
    if any("\ud800" <= letter <= "\udfff" for letter in question + template):
        raise UsageError("the question is not Unicode text", "pass it as UTF-8")
    if "{question}" not in template:
        raise UsageError("the template has no {question}", "pass --template with {question} where it belongs")
    return template.replace("{question}", question.strip())


def question_object(line: str | bytes) -> dict[str, Any] | None:
    """Read one line {"question": "...", ...} of a JSONL file of questions; None where it is no such object."""
    try:
        given = json.loads(line)
    except (ValueError, RecursionError):  # nested deeper than Python's stack
        return None
    return given if isinstance(given, dict) and isinstance(given.get("question"), str) else None


class TextStream:
    """Turn ids into text as they come, and notice a stop string.

    Text that may be the beginning of a stop string is held back until the next token settles it.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, stop: Sequence[str] = ()) -> None:
        from tokenizers.decoders import DecodeStream

        self._tokenizer = tokenizer
        self._decoder = DecodeStream(skip_special_tokens=True)
        self._stop = tuple(s for s in stop if s)
        self._held = ""
        self.text = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """Take one id; return the text that is settled now and set `stopped` at a stop string."""
        self._held += self._decoder.step(self._tokenizer, token) or ""
        found = [at for at in (self._held.find(s) for s in self._stop) if at >= 0]
        if found:
            self.stopped = True
            self._held = self._held[: min(found)]
            return self.finish()
        keep = max((_overlap(self._held, s) for s in self._stop), default=0)
        settled = self._held[: len(self._held) - keep]
        self._held = self._held[len(settled) :]
        self.text += settled
        return settled

    def finish(self) -> str:
        """Return what was held back; call it after the last id."""
        rest, self._held = self._held, ""
        self.text += rest
        return rest


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that begins `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if stop.startswith(text[-n:])), 0)
