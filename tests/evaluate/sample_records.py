"""Records of a made-up run: two cohorts, three arms, some answers missing."""

from __future__ import annotations

import numpy as np

from comem_cli.evaluate.records import Record

REPLAY, CHUNK, OVERLAP = "replay", "comem:j=12,mode=chunk", "comem:j=12,overlap=32"


def record(example: str, score: float, arm: str = REPLAY, **given: object) -> Record:
    """Make a record; what is not given is plain."""
    values = {
        "cell": "niah:2048",
        "cell_digest": f"digest of {given.get('cell', 'niah:2048')}",
        "cohort": "ruler",
        "group": "",
        "category": "",
        "identity": f"settings of {arm}",
        "prediction": "",
        "hit": True,
        "recall": 1.0,
        "chunks": ("a", "b"),
        "pack_tokens": 1000,
    }
    return Record(**{**values, **given, "example": example, "score": score, "arm": arm})  # type: ignore[arg-type]


def a_run() -> list[Record]:
    """Make 3 cells of RULER and 1 of another cohort, 20 examples each by 3 arms, drawn from a seed."""
    rng = np.random.default_rng(11)
    found = []
    cells = [("ruler", "niah:2048", 0.9), ("ruler", "niah:16384", 0.8), ("ruler", "vt:2048", 0.6), ("qa", "qa", 0.5)]
    for cohort, cell, level in cells:
        for number in range(20):
            hit = bool(rng.random() < 0.9)
            given = {"cohort": cohort, "cell": cell, "hit": hit, "recall": float(hit)}
            if cohort == "qa":
                given["group"] = f"article {number // 5}"
            luck = rng.random()
            for arm, loss in ((REPLAY, 0.0), (CHUNK, 0.3), (OVERLAP, 0.1)):
                right = hit and luck < level - loss
                score = float(right) if cell != "vt:2048" else round(float(right) * 0.8 + 0.2 * (luck < 0.9), 1)
                extra = {} if arm == REPLAY else {"first_token_equal": float(luck < 0.95 - loss)}
                found.append(record(str(number), score, arm, extra=extra, **given))
    return found
