"""What arms lose against replay on the same packs and needles: scored one by one, summed up with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from comem_cli.evaluate.arm_reader import ArmReader
from comem_cli.evaluate.arms import Arm
from comem_cli.evaluate.fidelity import Fidelity, kl
from comem_cli.evaluate.needles import Copied, Needle, copy_value
from comem_cli.evaluate.pack_fidelity import pack_logits, pack_targets
from comem_cli.evaluate.tune_row import Copying
from comem_cli.measure.inference import (
    Estimate,
    mcnemar_exact,
    mean_interval,
    paired_difference,
    proportion_interval,
)

Readers = Mapping[Arm, ArmReader]  # replay first
Tick = Callable[[], None]


@dataclass
class Seen:
    """Collect what one arm gives: a Fidelity a pack; a needle whether it is copied, and its first-token KL in nats."""

    packs: list[Fidelity] = field(default_factory=list)
    copied: list[bool] = field(default_factory=list)
    first_kls: list[float] = field(default_factory=list)

    @property
    def positions(self) -> int:
        """Count the tokens that were scored."""
        return sum(one.positions for one in self.packs)

    def lm_tax(self, seed: int) -> Estimate:
        """Return the geometric mean of the packs' LM taxes, bootstrap over packs."""
        return _exp(mean_interval([math.log(one.lm_tax) for one in self.packs], seed=seed))

    def agreement(self, seed: int) -> Estimate:
        """Return the mean agreement, bootstrap over packs."""
        return mean_interval([one.agreement for one in self.packs], seed=seed)

    def kl(self, seed: int) -> Estimate:
        """Return the mean KL(replay || arm) in nats, bootstrap over packs."""
        return mean_interval([one.mean_kl for one in self.packs], seed=seed)

    def first_kl(self, seed: int) -> Estimate | None:
        """Return the mean first-token KL in nats, bootstrap over needles; None without one."""
        return mean_interval(self.first_kls, seed=seed) if self.first_kls else None

    def copying(self, replay: Seen, seed: int) -> Copying | None:
        """Hold the needles against replay's; None without one."""
        if not self.copied:
            return None
        both = sum(a and b for a, b in zip(self.copied, replay.copied, strict=True))
        mine, by_replay = sum(self.copied), sum(replay.copied)
        pairs = ([float(one) for one in some] for some in (self.copied, replay.copied))
        return Copying(
            n=len(self.copied),
            copied=mine,
            by_replay=by_replay,
            both=both,
            kept=proportion_interval(both, by_replay) if by_replay else None,
            difference=paired_difference(*pairs, seed=seed),
            p=mcnemar_exact(by_replay - both, mine - both),
        )


def read_pack(
    documents: Sequence[Sequence[bytes]], bos_id: int | None, readers: Readers, seen: Mapping[Arm, Seen], tick: Tick
) -> None:
    """Score every token of a pack with every arm; documents: as `ArmWriter.rows` takes them."""
    targets = pack_targets([document[-1] for document in documents], bos_id)
    replay = None
    for arm, reader in readers.items():
        logits = pack_logits(reader.reader.split, bos_id, reader.writer.rows(documents))
        replay = logits if replay is None else replay
        found = Fidelity()
        found.add(logits, replay, targets.to(logits.device))
        seen[arm].packs.append(found)
        tick()


def read_needle(needle: Needle, readers: Readers, seen: Mapping[Arm, Seen], tick: Tick) -> None:
    """Let every arm copy a needle's value."""
    replay: Copied | None = None
    for arm, reader in readers.items():
        found = copy_value(reader.reader, reader.writer.rows(needle.documents), needle)
        replay = found if replay is None else replay
        seen[arm].copied.append(found.copied)
        seen[arm].first_kls.append(float(kl(replay.first, found.first)))
        tick()


def _exp(found: Estimate) -> Estimate:
    low, high = (None if bound is None else math.exp(bound) for bound in (found.low, found.high))
    return Estimate(math.exp(found.value), low, high, found.n)
