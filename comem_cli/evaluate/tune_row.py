"""One line of `comem tune`: what an arm loses against replay, what it saves and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from comem_cli.evaluate.arms import Arm
from comem_cli.measure.crossing import Crossing
from comem_cli.measure.inference import Estimate
from comem_cli.store.row_layout import BF16


@dataclass(frozen=True)
class Copying:
    """Hold an arm's needles against replay's: n needles, how many each copies and both do.

    kept: the share of replay's that the arm copies too, with Wilson's interval, None where replay copies none.
    difference: arm minus replay, paired bootstrap. p: exact McNemar.
    """

    n: int
    copied: int
    by_replay: int
    both: int
    kept: Estimate | None
    difference: Estimate
    p: float


@dataclass(frozen=True)
class WriteCost:
    """Hold the Write of a mode at a split: s a token (median), its ratio to chunk mode, measured and in FLOPs."""

    token_s: float
    ratio: Estimate
    flops_ratio: float


@dataclass(frozen=True)
class TuneRow:
    """Hold one arm.

    lm_tax, agreement, kl: means over packs (LM tax of their log-ratios), bootstrap over packs; positions: tokens
    scored. first_kl: KL(replay || arm) in nats at the first token of the needles' answers. speedup: of the time to the
    first token, replay over arm; question_s: median s for a whole answer. token_bytes: of a residual. crossing: Q*,
    after how many questions the store pays.
    """

    arm: Arm
    adapter: str | None
    positions: int
    lm_tax: Estimate
    agreement: Estimate
    kl: Estimate
    first_kl: Estimate | None
    copying: Copying | None
    speedup: Estimate
    question_s: float
    token_bytes: int
    write: WriteCost
    crossing: Crossing

    @property
    def name(self) -> str:
        """Name the arm without the path of its adapter."""
        arm = self.arm
        mode = f"overlap={arm.overlap}" if arm.overlap else arm.mode
        kept = f" {arm.residual_dtype}" if arm.residual_dtype != BF16 else ""
        return f"j={arm.split} {mode}{kept}" + (f" +{self.adapter}" if self.adapter else "")

    @property
    def kept(self) -> Estimate | None:
        """Return the share of replay's copies that are kept; None where there is none to keep."""
        return self.copying.kept if self.copying else None

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, unrounded; null stands for unknown, unresolved and infinite."""
        copying = self.copying
        return {
            "arm": self.arm.spec,
            "split": self.arm.split,
            "mode": self.arm.mode,
            "overlap": self.arm.overlap,
            "residual_dtype": self.arm.residual_dtype,
            "adapter": self.adapter,
            "positions": self.positions,
            "lm_tax": estimate_json(self.lm_tax),
            "agreement": estimate_json(self.agreement),
            "mean_kl": estimate_json(self.kl),
            "first_token_kl": estimate_json(self.first_kl),
            "copying": copying
            and {
                **{name: getattr(copying, name) for name in ("n", "copied", "by_replay", "both", "p")},
                "kept": estimate_json(copying.kept),
                "difference": estimate_json(copying.difference),
            },
            "read_speedup": estimate_json(self.speedup),
            "question_s": self.question_s,
            "bytes_per_token": self.token_bytes,
            "write": {
                "token_s": self.write.token_s,
                "ratio_to_chunk": estimate_json(self.write.ratio),
                "flops_ratio_to_chunk": self.write.flops_ratio,
            },
            "q_star": _crossing(self.crossing),
        }


def estimate_json(found: Estimate | None) -> dict[str, Any] | None:
    """Return value, low, high and n."""
    return None if found is None else dict(vars(found))


def _crossing(found: Crossing) -> dict[str, Any]:
    bounds = {"value": found.queries, "low": found.low, "high": found.high}
    finite = {name: bound if bound is not None and bound != float("inf") else None for name, bound in bounds.items()}
    return {"verdict": found.verdict, **finite}
