"""Compute the loss of sequences by lm-evaluation-harness: ``harness.py MODEL ROWS``; prints ``RESULT {"loss": …}``.

ROWS is a JSON list of token sequences: the first token of each is context, the others are judged.
"""

import json
import sys
from pathlib import Path

from lm_eval.models.huggingface import HFLM

model, rows = sys.argv[1:]
sequences = json.loads(Path(rows).read_text())
judge = HFLM(pretrained=model, dtype="float32", device="cpu", batch_size=4, trust_remote_code=False)
requests = [(("", ""), row[:1], row[1:]) for row in sequences]
total = sum(likelihood for likelihood, _ in judge._loglikelihood_tokens(requests, disable_tqdm=True))  # noqa: SLF001 - takes token ids
print("RESULT", json.dumps({"loss": -total / sum(len(row) - 1 for row in sequences)}))
