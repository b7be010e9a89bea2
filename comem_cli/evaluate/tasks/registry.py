"""Every benchmark task by its name, and `make_task` from a spec to a task.

A module of tasks gives one dict of builders; `TASKS` is their union.
"""

from __future__ import annotations

from comem_cli.errors import UsageError
from comem_cli.evaluate.task import Task
from comem_cli.evaluate.tasks.babilong import BABILONG_TASKS
from comem_cli.evaluate.tasks.hotpotqa import HOTPOTQA_TASKS
from comem_cli.evaluate.tasks.jsonl import JSONL_TASKS
from comem_cli.evaluate.tasks.locomo import LOCOMO_TASKS
from comem_cli.evaluate.tasks.longbench import LONGBENCH_TASKS
from comem_cli.evaluate.tasks.longeval import LONGEVAL_TASKS
from comem_cli.evaluate.tasks.musique import MUSIQUE_TASKS
from comem_cli.evaluate.tasks.ruler import RULER
from comem_cli.evaluate.tasks.spec import Builder, Options
from comem_cli.evaluate.tasks.squad import SQUAD_TASKS

TASKS: dict[str, Builder] = {
    **RULER,
    **LONGEVAL_TASKS,
    **BABILONG_TASKS,
    **LONGBENCH_TASKS,
    **LOCOMO_TASKS,
    **SQUAD_TASKS,
    **HOTPOTQA_TASKS,
    **MUSIQUE_TASKS,
    **JSONL_TASKS,
}

_SIZES = {
    **dict.fromkeys(RULER, "4096"),  # tokens
    **dict.fromkeys(BABILONG_TASKS, "4096"),
    **dict.fromkeys(LONGEVAL_TASKS, "200"),  # lines
    **dict.fromkeys(JSONL_TASKS, "FILE"),
}


def example_spec(name: str) -> str:
    """Return a spec that `make_task` takes: the name, with a usual size where the task has sizes."""
    return f"{name}:{_SIZES[name]}" if name in _SIZES else name


def make_task(spec: str) -> Task:
    """Make the task that `spec` names: NAME[:SIZE][:key=value,...].

    Raises: UsageError (2) for an unknown name, with the names that there are, and for a size or option that the task
    does not take.
    """
    options = Options(spec)
    if options.name not in TASKS:
        raise UsageError(f"no task is called {options.name or repr(spec)}", f"tasks: {', '.join(sorted(TASKS))}")
    task = TASKS[options.name](options)
    options.finish()
    return task
