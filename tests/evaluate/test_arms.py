from __future__ import annotations

from pathlib import Path

import pytest

from comem_cli.errors import UsageError
from comem_cli.evaluate.arms import REPLAY, Arm, parse_arm, parse_arms


@pytest.mark.parametrize(
    ("spec", "arm", "canonical"),
    [
        ("replay", REPLAY, "replay"),
        ("comem:j=12", Arm(12), "comem:j=12,mode=chunk"),
        ("comem:j=12,mode=chunk", Arm(12), "comem:j=12,mode=chunk"),
        ("comem:j=12,overlap=32", Arm(12, "overlap", 32), "comem:j=12,overlap=32"),
        ("comem:mode=document,j=6", Arm(6, "document"), "comem:j=6,mode=document"),
        ("comem:j=3,adapter=a/b", Arm(3, adapter=Path("a/b")), "comem:j=3,mode=chunk,adapter=a/b"),
        ("comem:j=3,residual=int8", Arm(3, residual_dtype="int8"), "comem:j=3,mode=chunk,residual=int8"),
        ("comem:j=3,residual=bf16", Arm(3), "comem:j=3,mode=chunk"),
        ("replay:adapter=a", Arm(adapter=Path("a")), "replay:adapter=a"),
    ],
)
def test_a_spec_is_read_and_named_canonically(spec: str, arm: Arm, canonical: str) -> None:
    assert parse_arm(spec) == arm
    assert arm.spec == canonical
    assert parse_arm(canonical) == arm


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "comem",
        "comem:j=0",
        "comem:j=-1",
        "comem:j=x",
        "comem:j=²",
        f"comem:j={'9' * 5000}",
        "comem:j=1,overlap=99999999999",
        "comem:j=1,j=2",
        "comem:j=1,mode=chunk,overlap=3",
        "comem:j=1,mode=overlap",
        "comem:j=1,mode=odd",
        "comem:j=1,what=2",
        "comem:j=1,residual=int4",
        "replay:residual=int8",
        "replay:j=3",
        "lower:j=1",
    ],
)
def test_what_is_no_arm_is_refused(spec: str) -> None:
    with pytest.raises(UsageError):
        parse_arm(spec)


def test_a_repeated_arm_counts_once() -> None:
    assert parse_arms(["replay", "comem:j=2", "comem:j=2,mode=chunk"]) == (REPLAY, Arm(2))
