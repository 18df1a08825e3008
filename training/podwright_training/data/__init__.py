"""Turn datasets into batches of packed token sequences, in one global order for any world size.

``stream`` is the entry point. It uses ``mixture`` (sources and weights), ``splits`` (files of a split), ``storage``
(local or remote files), ``formats`` and ``token_shards`` (contents of files), ``corpus`` (order of documents),
``tokenizer``, ``packing`` (documents to sequences), ``workers`` (processes that read ahead) and ``faults`` (tolerated
errors). torch is imported with the first batch: worker processes do not need it.
"""
