"""Text comes from the consolidated model, by Hugging Face's loaders alone."""

from argparse import ArgumentParser

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

from podwright_training.commands import generate as command
from podwright_training.commands.generate import GenerateError, generate
from podwright_training.errors import UserError
from podwright_training.run_folder import RunFolder


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A run whose consolidated model is a Llama of random weights over bytes."""
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    model = Tokenizer(models.BPE({**{byte: number for number, byte in enumerate(alphabet)}, "<end>": 256}, []))
    model.pre_tokenizer, model.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<end>").save_pretrained(folder.hf)
    set_seed(1)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=257, eos_token_id=256, bos_token_id=None, **shape)).save_pretrained(
        folder.hf
    )
    return folder


def run(*arguments):
    """Call the command."""
    parser = ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args([*arguments]))


def test_samples_are_written(run_folder, capsys):
    """Every prompt is continued; the file holds what was printed."""
    assert run("--run-dir", str(run_folder.root), "--prompts", "One", "Two", "--max-new-tokens", "8") == 0
    text = run_folder.samples.read_text()
    assert capsys.readouterr().out.endswith(text)
    first, second = text.split("\n\nTwo")
    assert len(first) > len("One")
    assert first.startswith("One")
    assert second.strip()


def test_seed_decides(run_folder):
    """The same seed gives the same text, whatever prompts came before; another seed another text."""

    def text(seed, *prompts):
        return generate(run_folder.hf, list(prompts), max_new_tokens=16, temperature=1.0, seed=seed)[-1]

    assert text(1, "The sea") == text(1, "A boat", "The sea")
    assert text(1, "The sea") != text(2, "The sea")


def test_a_small_share_leaves_the_likeliest_token(run_folder):
    """With ``top_p`` near 0 sampling is greedy."""
    greedy = generate(run_folder.hf, ["The sea"], max_new_tokens=16, temperature=0, seed=0)
    assert generate(run_folder.hf, ["The sea"], max_new_tokens=16, temperature=1, top_p=1e-6, seed=3) == greedy
    with pytest.raises(GenerateError, match=r"got top_p 0\.0, need a number above 0, at most 1"):
        run("--run-dir", str(run_folder.root), "--top-p", "0")


def test_the_text_is_printed_while_it_grows(run_folder, capsys):
    """A terminal shows the text that is returned."""
    texts = generate(run_folder.hf, ["One"], max_new_tokens=8, temperature=0, seed=0, stream=True)
    assert capsys.readouterr().out == f"{texts[0]}\n"


def test_temperature_zero_is_greedy(run_folder):
    """At temperature 0, the seed does not matter."""
    texts = {generate(run_folder.hf, ["The sea"], max_new_tokens=16, temperature=0, seed=seed)[0] for seed in range(3)}
    assert len(texts) == 1


def test_no_model(tmp_path):
    """A folder without a model is named."""
    with pytest.raises(UserError, match=rf"{tmp_path} has no config\.json: need a folder in Hugging Face's layout"):
        run("--model", str(tmp_path))


def test_numbers_out_of_range(tmp_path):
    """Numbers that cannot work are named before anything is loaded."""
    for flag, value, reason in (
        ("--max-new-tokens", "0", "got max_new_tokens 0, need at least 1"),
        ("--temperature", "nan", "got temperature nan, need a finite number, 0 or more"),
        ("--seed", str(2**63), f"got seed {2**63}, need 0 to {2**63 - 1}"),
    ):
        with pytest.raises(GenerateError, match=reason):
            run("--run-dir", str(tmp_path), flag, value)


def test_an_empty_prompt_and_a_device_that_is_not_there(run_folder):
    """A text may begin with nothing; the device is named with the reason."""
    (text,) = generate(run_folder.hf, [""], max_new_tokens=8, temperature=0, seed=0)
    assert text.strip()
    with pytest.raises(UserError, match="device foo: Expected one of cpu"):
        run("--run-dir", str(run_folder.root), "--device", "foo")
