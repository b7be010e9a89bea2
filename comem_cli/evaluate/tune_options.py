"""What `comem tune` sweeps and how much it measures; loads neither torch nor numpy."""

from __future__ import annotations

from dataclasses import dataclass, replace

from comem_cli.errors import UsageError
from comem_cli.evaluate.arms import Arm, parse_arm
from comem_cli.model.adapter import Adapter, Interface, choose_adapter, read_adapter
from comem_cli.model.load import ModelIdentity
from comem_cli.store.row_layout import DTYPES

MOST = 100_000  # packs, chunks, needles or repetitions: more is a slip of the finger


@dataclass(frozen=True)
class TuneOptions:
    """Hold the sweep. splits: () means L/6, L/4 and L/3 of the model. modes: as in an arm, "chunk" or "overlap=32".
    residual_dtypes: "bf16", "int8".

    packs of `chunks` chunks give LM tax and agreement, needles copying. loss: what LM tax may exceed 1 by; copy_loss:
    what share of replay's copies may be lost. questions: how many the store will be asked, None for unknown; generate:
    tokens of an answer. adapters: directories, ("none",) for none, () for those that are installed. chunk: tokens, None
    for the store's, else 512.
    """

    splits: tuple[int, ...] = ()
    modes: tuple[str, ...] = ("chunk", "overlap=32", "document")
    packs: int = 10
    chunks: int = 4
    needles: int = 20
    questions: int | None = None
    generate: int = 32
    loss: float = 0.02
    copy_loss: float = 0.05
    repeat: int = 5
    adapters: tuple[str, ...] = ()
    chunk: int | None = None
    seed: int = 0
    device: str = "auto"
    dtype: str = "auto"
    residual_dtypes: tuple[str, ...] = ("bf16",)

    def checked(self) -> TuneOptions:
        """Return the options; raises UsageError (2) for a value out of range."""
        for name, least in (("packs", 1), ("chunks", 1), ("needles", 0), ("generate", 1), ("repeat", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"--{name} {getattr(self, name)} is below {least}", f"pass --{name} {max(least, 4)}")
        if self.questions is not None and self.questions < 1:
            raise UsageError(f"--questions {self.questions} is below 1", "pass --questions 100")
        for name, most in (("packs", MOST), ("chunks", MOST), ("needles", MOST), ("repeat", MOST)):
            if getattr(self, name) > most:
                raise UsageError(f"--{name} {getattr(self, name)} is above {most}", f"pass --{name} 10")
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"--seed {self.seed} is outside 0..2^63 - 1", "pass --seed 0")
        if not 0 <= self.loss < float("inf") or not 0 <= self.copy_loss <= 1:  # NaN fails both
            raise UsageError("a loss budget is below 0, or above all that there is to copy", "pass --loss-budget 0.02")
        if not self.modes:
            raise UsageError("no mode to measure", "pass --mode chunk,overlap=32,document")
        if not self.residual_dtypes or not set(self.residual_dtypes) <= DTYPES.keys():
            raise UsageError(f"--residual-dtype is a list of {', '.join(DTYPES)}", "pass --residual-dtype bf16,int8")
        return self

    def arms(self, model: ModelIdentity) -> tuple[Arm, ...]:
        """Return every split, mode and residual dtype, shallow first; raises UsageError (2) for what cannot be."""
        layers = model.n_layers
        splits = self.splits or tuple(max(1, round(layers * share)) for share in (1 / 6, 1 / 4, 1 / 3))
        for split in splits:
            if not 1 <= split <= layers:
                raise UsageError(f"split {split} is outside 1..{layers}", f"pass --split {max(1, layers // 6)}")
        parts = [mode if "=" in mode else f"mode={mode}" for mode in self.modes]
        kinds = [f"{part},residual={dtype}" for part in parts for dtype in self.residual_dtypes]
        named = [parse_arm(f"comem:j={split},{kind}") for split in sorted(splits) for kind in kinds]
        return tuple(dict.fromkeys(named))

    def with_adapters(self, arms: tuple[Arm, ...], model: ModelIdentity, chunk: int) -> tuple[Arm, ...]:
        """Put after each arm the same arm with each adapter that was made for it.

        Raises: UsageError (2) for what is no adapter, FingerprintError (12) naming the fields of one that fits no arm.
        """
        interfaces = {
            arm: Interface.of(model, split=arm.split, chunk=chunk, mode=arm.mode, overlap=arm.overlap) for arm in arms
        }
        fitting: dict[Arm, list[Adapter]] = {arm: [] for arm in arms}
        if not self.adapters:
            for arm, interface in interfaces.items():
                found = choose_adapter(None, "suffix", interface)
                fitting[arm] += [found] if found is not None else []
        for path in self.adapters:
            adapter = choose_adapter(path, "suffix", _nearest(path, interfaces)) if path != "none" else None
            for arm, interface in interfaces.items():
                if adapter is not None and adapter.fits("suffix", interface):
                    fitting[arm].append(adapter)
        return tuple(
            one for arm in arms for one in (arm, *(replace(arm, adapter=each.directory) for each in fitting[arm]))
        )


def _nearest(path: str, interfaces: dict[Arm, Interface]) -> Interface:
    """Return the interface of the sweep that an adapter misses least."""
    from pathlib import Path

    mine = vars(read_adapter(Path(path).expanduser()).interface)
    return min(interfaces.values(), key=lambda one: sum(mine[name] != value for name, value in vars(one).items()))
