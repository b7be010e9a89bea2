"""Fixtures that several folders of tests share."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands.cli import FAST, QUESTION, Ran, World, write_documents

# A shell that starts a job in the background lets it ignore these, and every process that the tests start would too.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random llama of 6 layers, width 64 and window 512 on disk."""
    from tests.tiny import save_tiny

    return save_tiny(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> World:
    """A folder with `docs` (6 files) and `stores/docs`, written at split 2 in chunks of 64; not to be changed."""
    world = World(tmp_path_factory.mktemp("written"), tiny_model)
    write_documents(world.folder / "docs", 6)
    done = world.run("ingest", "docs", "--split", "2", "--chunk", "64")
    assert done.code == 0, done.err
    return world


@pytest.fixture(scope="session")
def answered(written: World) -> Ran:
    """What `ask --json` gives for QUESTION over the written store, greedily, in 6 tokens over 2 chunks."""
    done = written.run("ask", "stores/docs", QUESTION, "--json", *FAST)
    assert done.code == 0, done.err
    return done


@pytest.fixture
def world(tmp_path: Path, tiny_model: Path) -> World:
    """An empty folder."""
    return World(tmp_path, tiny_model)


@pytest.fixture
def copied(tmp_path: Path, written: World) -> World:
    """A copy of the written store; its sources are those of `written`."""
    shutil.copytree(written.folder / "stores", tmp_path / "stores")
    return World(tmp_path, written.model)


@pytest.fixture(scope="session")
def light(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Callable[[Path], World]:
    """Make a folder with `docs` and a store at split 0, which needs no model to be written."""

    def make(folder: Path) -> World:
        world = World(folder, tiny_model)
        write_documents(folder / "docs", 3)
        done = world.run("ingest", "docs", "--split", "0", "--chunk", "64")
        assert done.code == 0, done.err
        return world

    return make
