"""Turn datasets into batches of packed token sequences, in one global order for any world size.

``stream`` is the entry point. It uses ``mixture`` (sources and weights), ``splits`` (files of a split), ``storage``
(local or remote files), ``formats`` and ``token_shards`` (contents of files), ``corpus`` (order of documents),
``tokenizer``, ``packing`` (documents to sequences), ``workers`` (processes that read ahead) and ``faults`` (tolerated
errors). torch is imported with the first batch: worker processes do not need it.
"""

from podwright_training.data.faults import DataError
from podwright_training.data.mixture import Source, sources_of, validation_sources_of
from podwright_training.data.splits import find_split
from podwright_training.data.storage import shared_listings
from podwright_training.data.stream import PackedStream, merge_states, open_stream
from podwright_training.data.tokenizer import load_tokenizer, token_bytes

__all__ = [
    "DataError",
    "PackedStream",
    "Source",
    "find_split",
    "load_tokenizer",
    "merge_states",
    "open_stream",
    "shared_listings",
    "sources_of",
    "token_bytes",
    "validation_sources_of",
]
