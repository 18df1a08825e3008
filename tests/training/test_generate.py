"""Text comes from the consolidated model, by Hugging Face's loaders alone."""

import gzip
import json
import shutil
from argparse import ArgumentParser
from dataclasses import replace

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

from podwright_training.commands import generate as command
from podwright_training.commands.generate import GenerateError, generate
from podwright_training.config.train_config import TrainConfig
from podwright_training.errors import UserError
from podwright_training.harness import run_tasks
from podwright_training.perplexity import sums_by_source
from podwright_training.run_folder import ORIGIN, RunFolder
from podwright_training.transformers_model import LoadedModel, load_model


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


def with_positions(run_folder, folder, positions):
    """A copy of the model with so many positions."""
    shutil.copytree(run_folder.hf, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": positions}))
    return folder


def test_positions_end_a_text(run_folder, tmp_path, capsys):
    """A prompt that fills them is refused, and a text that they end is announced."""
    folder = with_positions(run_folder, tmp_path / "model", 16)
    with pytest.raises(GenerateError, match="prompt 2 has 16 tokens, and the model has 16 positions: need at most 15"):
        generate(folder, ["One", "a" * 16], max_new_tokens=4, temperature=0, seed=0)
    generate(folder, ["a" * 12], max_new_tokens=4, temperature=0, seed=0)
    assert capsys.readouterr().err == ""
    generate(folder, ["One", "a" * 12], max_new_tokens=5, temperature=0, seed=0)
    message = "warning: the model has 16 positions, so a text ends after 4 of 5 new tokens\n"
    assert capsys.readouterr().err == message


@pytest.mark.parametrize("temperature", [5e-324, 1e-30, 1e-6])
def test_a_tiny_temperature_is_greedy(run_folder, temperature):
    """Dividing by it would be infinite."""
    greedy, sampled = (
        generate(run_folder.hf, ["The sea"], max_new_tokens=8, temperature=value, seed=0) for value in (0, temperature)
    )
    assert sampled == greedy


def test_top_k_limits_the_choice(run_folder):
    """One token is the likeliest; 0 is no limit."""
    greedy = generate(run_folder.hf, ["The sea"], max_new_tokens=16, temperature=0, seed=0)
    assert generate(run_folder.hf, ["The sea"], max_new_tokens=16, temperature=1, top_k=1, seed=3) == greedy
    assert generate(run_folder.hf, ["The sea"], max_new_tokens=16, temperature=1, top_k=0, seed=3) != greedy
    with pytest.raises(GenerateError, match=r"got top_k -1, need 0 \(all tokens\) or more"):
        run("--run-dir", str(run_folder.root), "--top-k", "-1")


@pytest.mark.parametrize(("is_own", "writes_beginning"), [(True, True), (False, True), (False, False)])
def test_texts_begin_as_in_training(is_own, writes_beginning):
    """Own models never saw the token that a tokenizer declares to begin a text; others get what it writes."""
    model = Tokenizer(models.WordLevel({"<begin>": 0, "<end>": 1, "sea": 2}, unk_token="<end>"))
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if writes_beginning:
        model.post_processor = processors.TemplateProcessing("<begin> $A", special_tokens=[("<begin>", 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model, bos_token="<begin>", eos_token="<end>")
    loaded = LoadedModel(None, tokenizer, is_own)
    assert loaded.encode("") == [1 if is_own else 0]
    assert loaded.encode("sea") == ([0, 2] if writes_beginning and not is_own else [2])


def test_an_empty_text_needs_a_token_to_begin_with():
    """A tokenizer without such a token is named in one line."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"sea": 0}, unk_token="sea")))
    with pytest.raises(UserError, match="an empty prompt needs a tokenizer with eos_token or bos_token"):
        LoadedModel(None, tokenizer, is_own=False).encode("")


def test_the_harness_begins_texts_as_in_training(run_folder, tmp_path):
    """Only a model that podwright-train exported has no token that begins a text."""
    program = tmp_path / "harness"
    program.write_text('#!/bin/sh\necho "$4"; exit 1\n')
    program.chmod(0o755)
    folder = shutil.copytree(run_folder.hf, tmp_path / "hf")

    def arguments():
        with pytest.raises(UserError) as caught:
            run_tasks(folder, ["a"], program=str(program), include_path=None, device="cpu", dtype="float32")
        return json.loads(str(caught.value).splitlines()[-1])

    assert "prefix_token_id" not in arguments()
    (folder / ORIGIN).write_text("{}")
    assert (arguments()["prefix_token_id"], arguments()["add_bos_token"]) == (256, False)


@pytest.mark.slow
def test_a_small_split_is_read_once(run_folder, text_dataset):
    """However many tokens are asked for: each document counts once, less the first token of each sequence."""
    config = replace(
        TrainConfig(), dataset=str(text_dataset), dataset_config_name="en", tokenizer=str(run_folder.hf),
        max_context_width=32, data_streams=4, val_batch_size=8,
    )  # fmt: skip
    loaded = load_model(run_folder.hf, device="cpu")
    (file,) = (text_dataset / "en").glob("c4-validation*")
    texts = [json.loads(line)["text"] for line in gzip.decompress(file.read_bytes()).splitlines()]
    total = sum(len(text.encode()) + 1 for text in texts)  # a token for each byte, and the end
    (sums,) = sums_by_source(loaded, config, tokens=100 * total).values()
    assert total * 32 // 33 - 4 <= sums.tokens <= total
    assert sums.text_bytes <= total - len(texts)
    (part,) = sums_by_source(loaded, config, tokens=8 * 32).values()
    assert part.tokens == 8 * 32
    wide = replace(config, max_context_width=512, data_streams=64)  # Each stream has a part of a sequence.
    read = [sum(sums.tokens for sums in sums_by_source(loaded, wide, tokens=count * 512).values()) for count in (8, 64)]
    assert read[0] == read[1] <= total
