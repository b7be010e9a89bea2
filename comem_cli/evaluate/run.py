"""An evaluation from task specs to records: make the cells, then answer them with the runner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from comem_cli.errors import UsageError
from comem_cli.evaluate.arms import Arm
from comem_cli.evaluate.records import Record, RecordFile
from comem_cli.evaluate.runner import Runner, RunOptions
from comem_cli.evaluate.task import Cell, TaskContext
from comem_cli.evaluate.tasks.cache import cached_cell
from comem_cli.evaluate.tasks.registry import make_task
from comem_cli.model import load


class EvalRun:
    """Hold the cells of a run; they are made at once, so that what is missing is said before hours of work.

    n: examples a task, 0 for all. data: the folder of the benchmarks' files. note receives one line a cell, and one
    before the model is loaded. Raises: UsageError (2), ModelError.
    """

    def __init__(
        self,
        files: load.ModelFiles,
        tasks: Sequence[str],
        arms: Sequence[Arm],
        options: RunOptions,
        n: int,
        seed: int,
        data: Path | None,
        out: Path,
        note: Callable[[str], None],
    ) -> None:
        self._files, self._arms, self._options, self._out, self._note = files, tuple(arms), options, out, note
        context = TaskContext(load.tokenizer(files), load.identity(files).tokenizer, data, n, seed)
        made = [cached_cell(spec, make_task(spec), context) for spec in dict.fromkeys(tasks)]
        self.cells: tuple[Cell, ...] = _each_once(made)

    @property
    def total(self) -> int:
        """Count the answers of the whole run, those that are there already included."""
        return sum(len(cell.examples) for cell in self.cells) * len(self._arms)

    def records(self) -> Iterator[Record]:
        """Answer what has no record yet; yield every record. Raises as `Runner.run`."""
        with (
            RecordFile(self._out) as records,
            Runner(self._files, self._arms, self._options, records, self._note) as runner,
        ):
            runner.require_fit(self.cells)
            for cell in self.cells:
                self._note(f"{cell.name}: {len(cell.examples)} examples, {cell.cohort}")
                yield from runner.run(cell)


def _each_once(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """Drop cells that two specs name; raises UsageError (2) for two of one name that no report could tell apart."""
    found: dict[tuple[str, str], tuple[str, Cell]] = {}
    for cell in cells:
        digest = cell.digest()
        if found.setdefault((cell.cohort, cell.name), (digest, cell))[0] != digest:
            raise UsageError(
                f"two tasks are called '{cell.name}' and differ", "measure each into an --out FILE of its own"
            )
    return tuple(cell for _, cell in found.values())
