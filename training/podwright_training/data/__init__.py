"""Datasets → batches of packed token sequences, in one global order that no world size changes.

``stream`` is the door. Behind it: ``mixture`` (which sources), ``splits`` (which files), ``storage`` (where they are),
``formats`` and ``token_shards`` (what is in them), ``corpus`` (who reads which documents, in which order),
``tokenizer``, ``packing`` (documents to sequences), ``workers`` (in other processes), ``faults`` (what may be broken).
No torch until the first batch: worker processes do without.
"""

from podwright_training.data.faults import DataError
from podwright_training.data.mixture import Source, sources_of
from podwright_training.data.splits import find_split
from podwright_training.data.stream import PackedStream, merge_states, open_stream
from podwright_training.data.tokenizer import load_tokenizer

__all__ = [
    "DataError",
    "PackedStream",
    "Source",
    "find_split",
    "load_tokenizer",
    "merge_states",
    "open_stream",
    "sources_of",
]
