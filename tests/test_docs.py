"""The documents cannot go stale: commands, options and links in them exist, and those that exist are in them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.commands.cli import World
from tests.test_startup import commands

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def readme() -> str:
    if not README.exists():
        pytest.skip("README.md is not written yet")
    return README.read_text(encoding="utf-8")


def test_every_command_is_in_the_readme(readme: str, world: World) -> None:
    absent = [" ".join(command) for command in commands(world) if not re.search(_mention(command), readme)]
    groups = {"models"}
    assert [name for name in absent if name not in groups] == []


def _mention(command: list[str]) -> str:
    """Match a command in code: in a table, inline, or after `comem`."""
    return r"(?:`|comem )" + re.escape(" ".join(command)) + r"(?![\w-])"


def test_every_command_and_option_in_the_readme_exists(readme: str, world: World) -> None:
    names = {" ".join(command) for command in commands(world)}
    for line in re.findall(r"^\$? ?comem .*$", "\n".join(FENCE.findall(readme)), re.MULTILINE):
        words = line.removeprefix("$ ").split("#")[0].split()[1:]
        known = [name for name in names if words[: len(name.split())] == name.split()]
        assert known or words[0].startswith("-"), line
        if known:
            help_text = world.run(*max(known, key=len).split(), "--help").out
            for option in (word.split("=")[0] for word in words if word.startswith("--")):
                assert re.search(rf"{option}(?![\w-])", help_text), line


def test_every_option_of_a_command_is_explained_by_its_help(world: World) -> None:
    for command in commands(world):
        text = world.run(*command, "--help").out.partition("Options:\n")[2].partition("\nCommands:")[0]
        entries = re.split(r"\n(?=  -)", text)
        assert entries[-1].strip().startswith("-h, --help")
        for entry in entries:
            explained = re.sub(r"^  (?:-\w, )?--[\w-]+(?: [A-Z.,|<>a-z\[\]]+)?", "", entry, count=1).strip()
            assert len(explained) > 5, (command, entry)


def test_every_command_that_a_hint_names_exists(world: World) -> None:
    names = {command[0] for command in commands(world)}
    hint = re.compile(r"""["'`:] ?comem ([a-z]+(?:-[a-z]+)*)(?:["'`]| [A-Z{-])""")
    for module in (ROOT / "comem_cli").rglob("*.py"):
        for named in hint.findall(module.read_text(encoding="utf-8")):
            assert named in names, (module.name, named)


def test_every_relative_link_leads_somewhere() -> None:
    pages = [
        path for path in ROOT.rglob("*.md") if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
    ]
    assert pages
    broken = []
    for page in pages:
        for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
            if re.match(r"[a-z]+:|#", target):
                continue
            if not (page.parent / target.partition("#")[0]).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []
