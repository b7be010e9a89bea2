"""The shape of the project: sizes of modules, direction of imports, nothing heavy on the path of --help."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "comem_cli"
MODULES = sorted(PACKAGE.rglob("*.py"))
FLOW = ("corpus", "model", "store", "select", "read")  # a folder imports from itself and those before it
ABOVE = {"measure", "evaluate", "commands"}  # these may import from any of them
HEAVY = {"torch", "transformers", "peft", "zarr", "numpy", "jnius", "pyserini", "tokenizers", "rich", "tqdm"}
LIGHT = [PACKAGE / "app.py", PACKAGE / "output.py", PACKAGE / "errors.py", *(PACKAGE / "commands").glob("*.py")]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports(path: Path, *, top_level: bool = False) -> Iterator[str]:
    """Yield the dotted names that a module imports, type-checking blocks left out; top_level: on import only."""
    pending: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending += node.orelse
        elif not (top_level and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            pending += ast.iter_child_nodes(node)


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_module_is_short_and_begins_with_its_contract(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    limit = 120 if path.parent.name == "commands" else 400
    assert len(text.splitlines()) <= limit
    assert ast.get_docstring(ast.parse(text))


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_imports_follow_the_flow_of_data(path: Path) -> None:
    folder = path.relative_to(PACKAGE).parts[0]
    if folder in FLOW:
        allowed = {"errors", *FLOW[: FLOW.index(folder) + 1]}
    elif folder in ABOVE:
        allowed = {"errors", "__version__", *FLOW, *ABOVE - {"commands"}}
        allowed |= {"output", "commands"} if folder == "commands" else set()
    elif folder == "app.py":
        allowed = {"errors", "output", "commands", "__version__"}
    else:
        allowed = {"app"} if folder == "__main__.py" else set()
    used = {parts[1] for parts in (dotted.split(".") for dotted in imports(path)) if parts[0] == "comem_cli"}
    assert used <= allowed


def test_a_package_file_holds_one_docstring_and_no_import() -> None:
    for path in PACKAGE.rglob("__init__.py"):
        assert not list(imports(path)), path


@pytest.mark.parametrize("path", LIGHT, ids=name)
def test_nothing_heavy_is_imported_with_the_command_line(path: Path) -> None:
    roots = {dotted.split(".")[0] for dotted in imports(path, top_level=True)}
    assert roots.isdisjoint(HEAVY)
    parts = {".".join(dotted.split(".")[:2]) for dotted in imports(path, top_level=True)}
    assert {part for part in parts if part.startswith("comem_cli.")} <= {
        *("comem_cli.commands", "comem_cli.errors", "comem_cli.output", "comem_cli.__version__")
    }


def test_only_output_prints() -> None:
    for path in MODULES:
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        prints = [node for node in calls if isinstance(node.func, ast.Name) and node.func.id == "print"]
        assert path.name == "output.py" or not prints, f"{path}:{prints[0].lineno}"


def test_tests_have_distinct_names() -> None:
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names))


def test_no_tracked_file_names_a_path_of_one_machine() -> None:
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a Git checkout")
    private = re.compile(rb"(?<![\w.])/(?:home|root|Users|work|opt|workspace)/\w")
    for raw in filter(None, listed.split(b"\0")):
        path = ROOT / raw.decode()
        if path.is_file():
            assert not private.search(path.read_bytes()), path
