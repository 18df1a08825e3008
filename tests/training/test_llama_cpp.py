"""llama.cpp reads exports: its converter takes their configuration, tokenizer and tensors, and its logits are equal."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from podwright_testing.exported_models import OPTIONS_BY_MODEL, installed
from podwright_training.__main__ import main
from podwright_training.commands.consolidate import consolidate
from podwright_training.data.byte_level_bpe import train as train_tokenizer
from podwright_training.data.tokenizer import load_tokenizer, save_as_trained
from podwright_training.run_folder import RunFolder

GGUF = "gguf==0.19.0"
GLM_TOKENS = ("[gMASK]", "<|endoftext|>", "<|user|>", "<|observation|>")  # The converter looks them up by name.
TEXT = "It's 12345 o'clock, and THEY'RE late.\n\n  Größe: 日本\t ok"
READ_VOCABULARY = """import json, sys
from pathlib import Path
import gguf
folder = Path(sys.argv[1])
try:
    gguf.LlamaHfVocab(folder)
    kind = "llama"
except (FileNotFoundError, TypeError):
    kind = "bpe"
special = gguf.SpecialVocab(folder, load_merges=True)
print(json.dumps([kind, len(special.merges), special.special_token_ids, special.add_special_token]))
"""
# Without the converter's table of published tokenizers, which identifies each by a hash of its ids.
CONVERT = """import sys
sys.path.insert(0, sys.argv.pop(1))
import convert_hf_to_gguf
from conversion.base import TextModel
if name := sys.argv.pop(1):
    TextModel.get_vocab_base_pre = lambda self, tokenizer: name
convert_hf_to_gguf.main()
"""
COMPUTE = """import json, sys
from cyllama.llama import llama_cpp
model_file, request, answer = sys.argv[1:]
text, tokens = json.load(open(request))
llama_cpp.llama_backend_init()
llama_cpp.ggml_backend_load_all()
model = llama_cpp.LlamaModel(model_file, llama_cpp.LlamaModelParams(), verbose=False)
context = llama_cpp.LlamaContext(model, llama_cpp.LlamaContextParams(), verbose=False)
context.decode(llama_cpp.llama_batch_get_one(tokens))
vocabulary = model.get_vocab()
ids = [list(vocabulary.tokenize(text, add_special, False)) for add_special in (False, True)]
json.dump([list(context.get_logits_ith(-1)), ids, vocabulary.token_eos()], open(answer, "w"))
"""


@pytest.fixture(scope="module", params=["gpt2", "llama3"])
def tokenizer_folder(request, tmp_path_factory):
    """A tokenizer that podwright-train has trained, by each rule of words."""
    folder = tmp_path_factory.mktemp("tokenizer") / request.param
    train_tokenizer([TEXT] * 2, folder, vocab_size=300, pattern=request.param, special_tokens=GLM_TOKENS)
    return folder


@pytest.fixture(scope="module")
def gguf_package(tmp_path_factory):
    """Return the folder with llama.cpp's package gguf, from the registry."""
    if specification := importlib.util.find_spec("gguf"):
        return Path(specification.origin).parents[1]
    return installed(tmp_path_factory.mktemp("gguf"), GGUF)


@pytest.mark.slow
def test_the_package_gguf_reads_the_tokenizer(tokenizer_folder, tmp_path, gguf_package):
    """A byte-level BPE, all its merges, its special tokens, and that texts begin without one."""
    save_as_trained(load_tokenizer(str(tokenizer_folder)), tmp_path, add_bos=False)
    done = subprocess.run(
        [sys.executable, "-c", READ_VOCABULARY, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(gguf_package)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    merges = json.loads((tokenizer_folder / "tokenizer.json").read_text())["model"]["merges"]
    assert json.loads(done.stdout) == ["bpe", len(merges), {"bos": 0, "eos": 1}, {"bos": False, "eos": False}]


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS_BY_MODEL)
def test_llama_cpp_computes_the_logits_of_transformers(tiny_flags, tmp_path, name):
    """The converter needs the name of the rule of words; then ids are equal, and logits to 1e-3.

    A sliding window is no part of llama.cpp's Mistral, so the text is not longer than it.
    """
    sources, python = os.environ.get("PODWRIGHT_LLAMA_CPP"), os.environ.get("PODWRIGHT_CYLLAMA")
    if not sources or not python:
        pytest.skip("set PODWRIGHT_LLAMA_CPP to llama.cpp's folder, PODWRIGHT_CYLLAMA to a Python with cyllama")
    train_tokenizer([TEXT] * 2, tmp_path / "tokenizer", vocab_size=300, pattern="llama3", special_tokens=GLM_TOKENS)
    folder = RunFolder(tmp_path / "run")
    # Blocks of llama.cpp's types have 32 numbers.
    shapes = {"hidden_size": 64, "intermediate_size": 64, "vocab_size": 384, "tokenizer": tmp_path / "tokenizer"}
    flags = tiny_flags(folder.root, ranks=1, max_steps=1, **shapes, **OPTIONS_BY_MODEL[name])
    assert main(["train", *flags]) == 0
    consolidate(folder)

    def convert(pre_tokenizer):
        words = [sources, pre_tokenizer, str(folder.hf), "--outtype", "f32", "--outfile", str(tmp_path / "model.gguf")]
        return subprocess.run([sys.executable, "-c", CONVERT, *words], capture_output=True, text=True, check=False)

    assert "BPE pre-tokenizer was not recognized" in convert("").stderr
    done = convert("llama-bpe")
    assert done.returncode == 0, done.stderr
    tokens = torch.randint(0, 300, (1, 16), generator=torch.Generator().manual_seed(0))
    (tmp_path / "request").write_text(json.dumps([TEXT, tokens[0].tolist()]))
    paths = [str(tmp_path / file) for file in ("model.gguf", "request", "answer")]
    done = subprocess.run([python, "-c", COMPUTE, *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    logits, ids, end = json.loads((tmp_path / "answer").read_text())
    with torch.no_grad():
        expected = AutoModelForCausalLM.from_pretrained(folder.hf)(input_ids=tokens).logits[0, -1]
    torch.testing.assert_close(torch.tensor(logits), expected, atol=1e-3, rtol=0)
    tokenizer = AutoTokenizer.from_pretrained(folder.hf)
    assert ids == [tokenizer(TEXT, add_special_tokens=add_special).input_ids for add_special in (False, True)]
    assert end == tokenizer.eos_token_id
