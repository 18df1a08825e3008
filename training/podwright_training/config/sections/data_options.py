"""Options of the training data."""

from __future__ import annotations

from dataclasses import dataclass

from podwright_training.config.option import option

TOKEN_DTYPES = ("uint8", "uint16", "uint32", "uint64", "int32", "int64")


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Set the dataset, the tokenizer and how both are read."""

    dataset: str = option(
        "allenai/c4",
        "Dataset on the Hugging Face hub, local folder, or s3://bucket/folder, of JSON lines, Parquet, Arrow or "
        "token shards; or local folder of token files of Megatron, nanoGPT, llm.c or OLMo.",
    )
    dataset_config_name: str | None = option(
        "en", "Subfolder of the dataset, or a configuration named in its card; write none to read all files."
    )
    text_column: str = option("text", "Column that holds the text.")
    token_dtype: str | None = option(
        None,
        "Type of the numbers in token files that do not name it: .bin of nanoGPT, .npy of OLMo.",
        choices=TOKEN_DTYPES,
    )
    token_end: int | None = option(
        None,
        "Token that ends each document in token files of other programs; training replaces it by the tokenizer's EOS "
        "token. Default: that token.",
        at_least=0,
    )
    data_mixture: str | None = option(
        None,
        "Several weighted datasets instead of dataset: dataset=weight,… or name=/folder=weight,… or a YAML file of "
        "name: {dataset: …, dataset_config_name: …, text_column: …, token_dtype: …, token_end: …, weight: …, "
        "max_epochs: …}, whose folders are relative to the file. A list phases: [{from_step: … or from_tokens: …, "
        "weights: {name: weight, …}}, …] in it changes the weights during the run.",
    )
    mixture_temperature: float = option(
        1.0,
        "Raise the weights of a mixture to the power 1 / temperature; above 1, small sources are read more.",
        above=0,
    )
    max_epochs: int | None = option(
        None,
        "Passes over each source; the run ends when all documents of one were read so often. Default: no limit.",
        at_least=1,
    )
    tokenizer: str = option(
        "EleutherAI/gpt-neox-20b",
        "Tokenizer on the Hugging Face hub, or local folder. Its EOS token follows each document.",
    )
    add_bos: bool = option(
        False,
        "Begin each document of text with the tokenizer's BOS token. Token files have it already, or not: set this as "
        "they are.",
    )
    train_batch_size: int = option(2, "Sequences per rank and micro-batch.", at_least=1)
    data_streams: int = option(
        64, "Streams the data is read in; a multiple of every world size the run will use.", at_least=1
    )
    shuffle: bool = option(
        True,
        "Read the documents in random order; else in the order of the files: each stream reads one part of it, so a "
        "single stream reads them as they are stored.",
    )
    data_workers: int = option(
        2,
        "Processes per rank that read, tokenize and pack ahead; 0: do it in the training process.",
        at_least=0,
    )
    document_mask: bool = option(
        False, "Restrict attention to the token's own document; positions restart with each document."
    )
    max_bad_records: int = option(100, "Broken records a rank skips before it stops.", at_least=0)
    max_bad_shards: int = option(1, "Unreadable shards a rank abandons before it stops.", at_least=0)
