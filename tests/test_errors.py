"""The exception tree in the docstring is the real one, and operating-system errors become actionable."""

from __future__ import annotations

import errno
import re

import pytest

from comem_cli import errors
from comem_cli.errors import ComemError, NoSpaceError, from_os_error


def tree() -> dict[str, int]:
    """Read `Name (code)` from the module's docstring."""
    return {name: int(code) for name, code in re.findall(r"(\w+Error) \((\d+)\)", errors.__doc__ or "")}


def test_the_documented_tree_is_complete() -> None:
    classes = {cls.__name__: cls.exit_code for cls in [ComemError, *ComemError.__subclasses__()]}
    ours = {name: code for name, code in classes.items() if getattr(errors, name, None)}
    assert ours == tree()


def test_each_kind_of_failure_has_an_exit_code_of_its_own() -> None:
    codes = [code for name, code in tree().items() if name not in {"ComemError", "ModelError"}]
    assert len(codes) == len(set(codes))
    assert not set(codes) & {0, 1, 130, 143}


def test_every_error_is_documented_and_carries_message_and_hint() -> None:
    for cls in ComemError.__subclasses__():
        assert cls.__doc__
        error = cls("what", "comem verify x")
        assert (str(error), error.message, error.hint) == ("what", "what", "comem verify x")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_its_own_error(number: int) -> None:
    error = from_os_error(OSError(number, "No space left on device", "/data/x"))
    assert isinstance(error, NoSpaceError)
    assert "/data/x" in error.message


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/data/x"), "permission denied: /data/x"),
        (OSError(errno.EROFS, "Read-only file system", "/data/x"), "read-only file system: /data/x"),
        (OSError("odd"), "oSError"),
    ],
)
def test_other_errors_keep_their_reason_and_path(error: OSError, message: str) -> None:
    found = from_os_error(error)
    assert (found.exit_code, found.message) == (1, message)
    assert found.hint
