"""Pre-train a small Llama on bytes of its own source with Hugging Face's Trainer; it runs on CPUs too."""

import sys
from pathlib import Path

import torch
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

LENGTH = 64  # bytes of a sequence


class Bytes(torch.utils.data.Dataset):
    """Windows of this file, each with itself as labels."""

    def __init__(self) -> None:
        self._bytes = torch.tensor(list(Path(__file__).read_bytes()))

    def __len__(self) -> int:
        """Return how many windows there are."""
        return len(self._bytes) - LENGTH

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """Return int64 ``[LENGTH]`` twice."""
        window = self._bytes[index : index + LENGTH]
        return {"input_ids": window, "labels": window}


def main() -> None:
    """Train as the flags of ``TrainingArguments`` say, from a checkpoint if they name one."""
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(sys.argv[1:])
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=256, max_position_embeddings=LENGTH, **shape))
    trainer = Trainer(model=model, args=arguments, train_dataset=Bytes())
    trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint)


if __name__ == "__main__":
    main()
