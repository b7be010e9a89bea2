"""Ask a store that may be damaged: where an answer meets damage, repair the store and ask again.

A repair takes the writer lock and, where residuals are lost, computes them again with the store's model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from comem_cli.errors import CorruptStoreError, IndexStaleError
from comem_cli.model import load
from comem_cli.read.ask import Asked, Asker, AskOptions
from comem_cli.select.store_repair import store_repair

T = TypeVar("T")


class HealingAsker:
    """Answer as `Asker` does; each question heals the store at most once. A context manager.

    Raises what `Asker` raises, and what `Repair.run` raises; the first error where the repair mends nothing.
    """

    def __init__(
        self,
        store: Path,
        resolve: Callable[[], load.ModelFiles],
        options: AskOptions,
        *,
        note: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        self._store = store
        self._resolve = resolve
        self._options = options
        self._note, self._warn = note, warn
        self._asker: Asker | None = None
        self._healed(lambda asker: asker)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def ask(self, question: str, on_text: Callable[[str], None] | None = None) -> Asked:
        """Select, read and answer; damage shows before any text does."""
        return self._healed(lambda asker: asker.ask(question, on_text))

    def ask_lines(self, lines: Sequence[tuple[int, str | bytes]]) -> list[dict[str, Any]]:
        """Answer numbered JSON lines."""
        return self._healed(lambda asker: asker.ask_lines(lines))

    def _healed(self, use: Callable[[Asker], T]) -> T:
        try:
            return use(self._open())
        except (CorruptStoreError, IndexStaleError) as error:
            self._close()
            self._heal(error)
        return use(self._open())

    def _open(self) -> Asker:
        if self._asker is None:
            self._asker = Asker(self._store, self._resolve, self._options, note=self._note, warn=self._warn)
        return self._asker

    def _close(self) -> None:
        if self._asker is not None:
            self._asker.__exit__(None, None, None)
            self._asker = None

    def _heal(self, error: CorruptStoreError | IndexStaleError) -> None:
        self._note(f"{error.message}; repairing {self._store} ...")
        job = store_repair(self._store, self._resolve, device=self._options.device, note=self._note)
        before, after = job.run()
        if before is after:  # nothing that a repair knows
            raise error
        done = job.done
        self._note(
            f"repaired: {done.rewritten} chunks computed again, {done.moved} moved, {done.shards} shards replaced"
        )
