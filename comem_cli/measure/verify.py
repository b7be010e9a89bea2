"""Run the eight contracts of DESIGN.md §4 on a user's own model and store, one result a line.

Lines 1 to 6 run the model on tokens of the store, in fp32 unless told otherwise; line 7 runs it in the dtype that wrote
the store, because any other one is another Write; line 8 needs no model. What goes wrong on a line (a checksum, a
missing index, a model that did not write the store) fails that line, and the others go on. Only a store or a model that
cannot be opened at all is raised.
"""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from comem_cli.errors import ComemError, FingerprintError, UsageError
from comem_cli.measure import contracts, store_contracts
from comem_cli.measure.bm25_formula import bm25_scores
from comem_cli.model import load
from comem_cli.model.device import DTYPES, pick
from comem_cli.model.families import is_recurrent
from comem_cli.model.shapes import TOKENS_PER_BATCH, Shape, batch_shapes, shapes_from_json
from comem_cli.model.split import SplitModel
from comem_cli.select.store_index import index_scheme, open_store_index
from comem_cli.store.identify import require_model
from comem_cli.store.reader import StoreReader
from comem_cli.store.rows import ChunkRow
from comem_cli.store.write_adapter import writing_model
from comem_cli.store.writer import COMPUTE_DTYPE

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

QUERY, NEW_TOKENS = 16, 8
SHORTEST, LONGEST = 96, 1024  # tokens of a test input: past a sliding window where the model has one
EVERY_SPLIT = 8  # layers up to which line 1 tries each split
PACK_CHUNKS = 2  # chunks of the pack that line 7 answers twice
QUERIED = 16  # chunks at most that line 8 makes queries from
SCORED = 1000  # best chunks whose scores line 8 compares, a query
SCORE_TOLERANCE = 1e-5  # Lucene adds up in float32


@dataclass(frozen=True)
class VerifyOptions:
    """Hold what the user asked for.

    samples: chunks on line 7, and up to 16 of them on line 8; None means every one. dtype: of lines 1 to 6.
    """

    samples: int | None = 8
    device: str = "auto"
    dtype: str = "fp32"
    seed: int = 0

    def checked(self) -> VerifyOptions:
        """Return the options; raises UsageError (2) for a value out of range."""
        if self.samples is not None and self.samples < 1:
            raise UsageError(f"--samples {self.samples} is below 1", "pass --samples 8, or --all")
        return self


@dataclass(frozen=True)
class Result:
    """Hold one line: the figure that the contract bounds (None: it could not be measured), and whether it holds."""

    name: str
    measured: float | None
    tolerance: float
    passed: bool
    detail: str

    def to_json(self) -> dict[str, Any]:
        """Return the fields; a figure without an end, as for a missing chunk, has no number in JSON."""
        finite = self.measured if self.measured is not None and math.isfinite(self.measured) else None
        return {**vars(self), "measured": finite}


@dataclass(frozen=True)
class _Finding:
    """What a check found; `wrong` names what fails the line whatever the figure is."""

    measured: float
    detail: str
    wrong: str = ""


def verify(
    store: Path, resolve: Callable[[], load.ModelFiles], options: VerifyOptions, note: Callable[[str], None]
) -> Iterator[Result]:
    """Yield the result of each contract as soon as it is known.

    Raises: NoStoreError (10), UsageError (2) for an empty store, ModelError, CorruptStoreError (13) where the catalogue
    itself is damaged.
    """
    with StoreReader(store) as reader:
        run = _Verification(reader, resolve(), options.checked(), note)
        yield from run.model_lines()
        yield from run.store_lines()


class _Verification:
    """Holds one store, one model and the inputs that both kinds of line share."""

    def __init__(
        self, reader: StoreReader, files: load.ModelFiles, options: VerifyOptions, note: Callable[[str], None]
    ) -> None:
        self._reader, self._files, self._options, self._note = reader, files, options, note
        self._identity = load.identity(files)
        self._chunks = store_contracts.sample_chunks(reader, options.samples, options.seed)
        if not self._chunks:
            raise UsageError(f"{reader.path} holds no chunks to check", f"comem ingest PATH --store {reader.path}")
        self._model: PreTrainedModel | None = None
        self._before = store_contracts.file_states(reader.path, whole=options.samples is None)

    # Lines 1 to 6: the model alone.

    def model_lines(self) -> Iterator[Result]:
        """Check the split, the Read and the Write of the model on tokens of the store."""
        model = self._load(self._options.dtype)
        bounds = contracts.Tolerances.of(model.dtype, recurrent=is_recurrent(model.config))
        yield _line("partition", 0.0, lambda: self._partition(model))
        yield _line("replay", 0.0, lambda: self._replay(model))
        yield _line("oracle", 0.0, lambda: self._oracle(model))
        yield _line("decode", bounds.logits, lambda: self._decode(model))
        yield _line("write", bounds.residuals, lambda: self._write(model))
        yield _line("document", bounds.residuals, lambda: self._document(model))

    def _partition(self, model: PreTrainedModel) -> _Finding:
        layers, split = self._identity.n_layers, self._reader.fingerprint.split
        few = {0, 1, split, layers // 3, 2 * layers // 3, layers - 1, layers}
        splits = range(layers + 1) if layers <= EVERY_SPLIT else sorted(few)
        worst = contracts.partition_error(model, self._ids(), list(splits))
        return _Finding(worst, f"max |Δlogit| against the stock forward, splits {', '.join(map(str, splits))}")

    def _replay(self, model: PreTrainedModel) -> _Finding:
        pack = [self._readable(chunk) for chunk in self._chunks[:PACK_CHUNKS]]
        tokenizer = load.tokenizer(self._files)
        args = (self._reader, model, self._identity, tokenizer, pack, self._ids(QUERY), NEW_TOKENS)
        wrong = store_contracts.replay_mismatches(*args)
        tokens = sum(chunk.n_tokens for chunk in pack)
        return _Finding(wrong, f"of {NEW_TOKENS} greedy tokens differ from stock generate over {tokens} stored tokens")

    def _oracle(self, model: PreTrainedModel) -> _Finding:
        split = self._reader.fingerprint.split
        worst = contracts.oracle_error(model, self._identity.bos_id, self._ids(), split)
        return _Finding(worst, f"max |Δlogit| of the continuous prefix at split {split} against replay")

    def _decode(self, model: PreTrainedModel) -> _Finding:
        ids, split = self._ids(), self._reader.fingerprint.split
        pack = (ids[:-QUERY], ids[-QUERY:])
        worst, flips = contracts.decode_error(model, self._identity.bos_id, *pack, split, NEW_TOKENS)
        wrong = f"{flips} of {NEW_TOKENS} tokens differ; " if flips and _is_fp32(model) else ""
        detail = f"max |Δlogit| / max |logit| of cached decoding against recomputing, {NEW_TOKENS} tokens"
        return _Finding(worst, detail + (f", {flips} near ties flip" if flips and not wrong else ""), wrong)

    def _write(self, model: PreTrainedModel) -> _Finding:
        split, shapes = self._inner_split(), self._shapes(model)
        short, long = shapes[0].length, min(shapes[-1].length, self._reader.fingerprint.chunk)
        lengths = (max(1, short - 1), long, short, max(1, short // 2), max(1, long - 1))
        chunks = [_packed(self._ids(n, start=n)) for n in lengths]
        worst = contracts.write_error(model, chunks[:2], shapes, split)
        changed = contracts.write_bits_changed(SplitModel(model, split), chunks, shapes)
        wrong = f"{changed} of {len(chunks)} chunks change with their neighbours; " if changed else ""
        return _Finding(worst, f"max |Δh| / max |h| of batched Write against stock forwards, split {split}", wrong)

    def _document(self, model: PreTrainedModel) -> _Finding:
        split, ids = self._inner_split(), self._ids()
        step = len(ids) // 3 + 5  # odd lengths: kernels of another shape, a short last chunk
        document = [_packed(ids[start : start + step]) for start in range(0, len(ids), step)]
        worst = max(
            contracts.document_error(model, document, split, self._identity.window),
            contracts.overlap_error(model, document, split),
        )
        return _Finding(worst, f"max |Δh| / max |h| of document and overlap Write against one forward, split {split}")

    # Lines 7 and 8: the store.

    def store_lines(self) -> Iterator[Result]:
        """Check stored bytes, answers and the index."""
        yield _line("storage", 0.0, self._storage)
        yield _line("selection", SCORE_TOLERANCE, self._selection)

    def _storage(self) -> _Finding:
        split = self._reader.fingerprint.split
        read = store_contracts.read_everything(self._reader) if split else 0
        try:
            require_model(self._reader.fingerprint, self._identity)
        except FingerprintError as error:
            raise FingerprintError(f"not written by this model: {error.message}") from error
        stored = self._reader.recorded.get(COMPUTE_DTYPE, "auto")
        model = self._load(stored if stored in DTYPES else "auto")
        writes = writing_model(model, self._reader.fingerprint.write_adapter)
        checked = self._chunks if split else []
        window = self._identity.window
        differing = (
            store_contracts.rewritten_differently(self._reader, SplitModel(writes, split), window, checked)
            if checked
            else []
        )
        unequal = self._unequal_answers(model)
        changed = self._changed_files()
        where = "".join(f" ({reason})" for reason in self._elsewhere(model) if differing)
        detail = (
            f"of {len(checked)} chunks differ from a fresh Write{where}; {read} match their checksums; "
            f"answers differ: {unequal}; files changed: "
        )
        return _Finding(len(differing) + unequal + len(changed), detail + (", ".join(changed) or "none"))

    def _unequal_answers(self, model: PreTrainedModel) -> int:
        """Answer one question over one pack twice; return 1 where the token ids differ."""
        pack = self._chunks[:PACK_CHUNKS]
        question = np.frombuffer(pack[0].ids, dtype="<u4")[:QUERY].tolist()
        tokenizer = load.tokenizer(self._files)
        args = (self._reader.path, model, self._identity, tokenizer, pack, question, NEW_TOKENS)
        return int(store_contracts.answer_ids(*args) != store_contracts.answer_ids(*args))

    def _selection(self) -> _Finding:
        reader = self._reader
        queries = store_contracts.made_queries(
            self._chunks[:: max(1, len(self._chunks) // QUERIED)], self._options.seed
        )
        scheme = index_scheme(reader, load.tokenizer(self._files))
        formula = bm25_scores(((chunk.id, chunk.ids) for chunk in reader.iter_chunks()), queries, scheme)
        with open_store_index(reader) as index:
            most = min(SCORED, reader.counts().chunks)
            pairs = list(zip(queries, formula, strict=True))
            worst = max(store_contracts.score_error(index, query, scores, most, scheme) for query, scores in pairs)
            detail = f"max relative Δscore of {len(queries)} queries against the formula"
            if not worst <= SCORE_TOLERANCE:
                return _Finding(worst, detail)
            packs = [store_contracts.selections(reader, index, queries, scheme) for _ in range(2)]
        with store_contracts.rebuilt_index(reader, scheme) as index:
            packs.append(store_contracts.selections(reader, index, queries, scheme))
        wrong = "" if packs[0] == packs[1] else "packs differ from run to run; "
        wrong += "" if packs[0] == packs[2] else "packs differ from those of a rebuilt index; "
        changed = self._changed_files()
        wrong += f"files changed: {', '.join(changed)}; " if changed else ""
        return _Finding(worst, detail, wrong)

    # Shared.

    def _load(self, dtype: str) -> PreTrainedModel:
        """Load the model in one dtype, and let go of the one before."""
        device, wanted = pick(self._options.device, dtype)
        if self._model is None or self._model.dtype != wanted:
            self._model = None
            self._note(f"loading {self._files.name} in {str(wanted).removeprefix('torch.')} ...")
            self._model = load.load(self._files, device, wanted)
        return self._model

    def _ids(self, length: int = 0, start: int = 0) -> list[int]:
        """Take tokens of the sampled chunks, over and over, as many as asked for; without: enough for lines 1 to 6."""
        if not length:
            window = self._sliding_window()
            length = min(max(SHORTEST, window + SHORTEST // 3), LONGEST, self._identity.window // 2)
        ids = np.frombuffer(b"".join(chunk.ids for chunk in self._chunks), dtype="<u4")
        # A model that did not write the store may have a smaller vocabulary; the line `storage` says so.
        taken: list[int] = np.resize(np.roll(ids, -start) % self._identity.vocabulary, length).tolist()
        return taken

    def _readable(self, chunk: ChunkRow) -> ChunkRow:
        """Bring a chunk's ids into the model's vocabulary; with the model of the store nothing changes."""
        ids = np.frombuffer(chunk.ids, dtype="<u4") % self._identity.vocabulary
        return replace(chunk, ids=_packed(ids.tolist()))

    def _sliding_window(self) -> int:
        config: Any = self._model.config if self._model is not None else None
        return int(getattr(config, "sliding_window", None) or 0)

    def _inner_split(self) -> int:
        """Return the store's split, or where that has no residual to compare, the default one."""
        layers, split = self._identity.n_layers, self._reader.fingerprint.split
        return split if 0 < split < layers else max(1, round(layers / 3)) if layers > 1 else 0

    def _shapes(self, model: PreTrainedModel) -> Sequence[Shape]:
        written = self._reader.fingerprint
        tokens = TOKENS_PER_BATCH[model.device.type]
        stored = shapes_from_json(written.shapes)
        made = stored or batch_shapes(written.chunk, written.overlap, tokens, routed=self._identity.routed)
        return sorted(made, key=lambda shape: shape.length)

    def _changed_files(self) -> list[str]:
        after = store_contracts.file_states(self._reader.path, whole=self._options.samples is None)
        return store_contracts.changed_files(self._before, after)

    def _elsewhere(self, model: PreTrainedModel) -> list[str]:
        """Say in what this run differs from the one that wrote the store: reasons for other bits."""
        recorded = self._reader.recorded
        here = {"device": str(model.device), "torch": importlib.metadata.version("torch")}
        return [
            f"written with {name} {recorded[name]}, here {now}"
            for name, now in here.items()
            if recorded.get(name, now) != now
        ]


def _line(name: str, tolerance: float, check: Callable[[], _Finding]) -> Result:
    """Run one check; an error of comem's own is a failed line."""
    try:
        found = check()
    except ComemError as error:
        return Result(name, None, tolerance, False, error.message)
    passed = found.measured <= tolerance and not found.wrong
    return Result(name, found.measured, tolerance, passed, found.wrong + found.detail)


def _packed(ids: Sequence[int]) -> bytes:
    return np.array(ids, dtype="<u4").tobytes()


def _is_fp32(model: PreTrainedModel) -> bool:
    dtype: torch.dtype = model.dtype
    return str(dtype) == "torch.float32"
