"""Tables of published configurations."""

import csv
import importlib.util
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from published.flops import convention
from published.memory import memory, reading_gb
from published.table import COLUMNS, predict, predict_file
from published.table_row import parse_row

from podwright.planning.model import Model

TABLE = Path(__file__).parents[2] / "bench" / "data" / "published_throughput.csv"
ROW = {
    "model": "MPT-7b",
    "kind": "dense",
    "task": "pretrain",
    "layers": "32",
    "hidden": "4096",
    "heads": "32",
    "kv_heads": "32",
    "ffn": "16384",
    "vocab": "50368",
    "seq_len": "2048",
    "accel": "A100-80GB",
    "gpus": "8",
    "framework": "composer+FSDP",
    "precision": "bf16",
    "tp": "1",
    "pp": "1",
    "sharding": "FULL_SHARD",
    "mbs": "6",
    "gbs_seqs": "96",
    "act_ckpt": "none",
    "tflops_convention": "6N+12Lhs per token",
}


with TABLE.open(newline="", encoding="utf-8") as table:
    ROWS = list(csv.DictReader(table))


@pytest.fixture
def rows():
    """The development table."""
    return ROWS


def test_a_row_is_predicted():
    """The row measured at 4,641 tokens/s and 64.2 % MFU is met within a tenth, and its parts agree with each other."""
    found = predict(ROW)
    rate = float(found["pred_tok_s_gpu"])
    assert rate == pytest.approx(4641, rel=0.1)
    assert float(found["pred_mfu_pct"]) == pytest.approx(64.23 * rate / 4641, rel=0.01)
    assert float(found["pred_step_s"]) == pytest.approx(96 * 2048 / 8 / rate, rel=0.001)
    assert float(found["pred_low_tok_s_gpu"]) < rate < float(found["pred_high_tok_s_gpu"])
    assert found["pred_fits"] == "yes"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"seq_len": ""}, "sequence length not given"),
        ({"gpus": ""}, "number of accelerators not given"),
        ({"gpus": "eight"}, "gpus: got 'eight', need a number"),
        ({"mbs": "1.5"}, "whole number"),
        ({"accel": "TPUv9"}, "not in the catalog of accelerators"),
        ({"framework": "Megatron-LM", "tp": "", "sharding": ""}, "layout not given"),
        ({"tp": "3"}, "are not a multiple of tensor 3"),
        ({"model": "Mystery", "kind": "moe"}, "experts"),
        ({"model": "Mystery", "hidden": ""}, "hidden"),
    ],
)
def test_a_row_that_cannot_be_modelled_is_left_empty(changes, reason):
    """The row has no prediction, and the note has the reason."""
    found = predict({**ROW, **changes})
    assert reason in found.pop("note")
    assert set(found.values()) == {""}


@pytest.mark.parametrize(
    ("named", "by_memory"),
    [
        ({"accel": "A100", "accel_mem_gb": "80"}, {"accel": "A100-80GB"}),
        ({"accel": "H100", "accel_mem_gb": "96"}, {"accel": "H100-96GB"}),
        ({"accel": "MI250X", "peak_bf16_tflops": "191.5"}, {"accel": "MI250X-GCD"}),
    ],
)
def test_memory_and_peak_say_which_accelerator_it_is(named, by_memory):
    """A name that leaves the memory open is completed by the row's own; half a module's peak is one of its dies."""
    found, expected = predict({**ROW, **named}), predict({**ROW, **by_memory})
    assert float(found["pred_tok_s_gpu"]) == pytest.approx(float(expected["pred_tok_s_gpu"]), rel=0.02)
    assert found["pred_fits"] == expected["pred_fits"]


def test_ranks_of_a_chip_may_be_its_cores():
    """Degrees of parallelism that multiply to twice the Trainium chips are those of their cores, said or not."""
    trainium = {"accel": "trn1-chip", "gpus": "16", "framework": "NxD 2.24", "sharding": "", "tp": "8", "dp": "4"}
    said, unsaid = (predict({**ROW, **trainium, "notes": notes}) for notes in ("counted in NeuronCores", ""))
    assert said["pred_tok_s_gpu"] == unsaid["pred_tok_s_gpu"]
    assert float(said["pred_tok_s_gpu"]) > 0


def test_only_what_is_needed_must_be_given():
    """A row of model, length, accelerator and framework alone is predicted, and says what was assumed."""
    names = ("seq_len", "accel", "gpus", "framework", "sharding")
    found = predict({"model": "Llama-2-7B", **{name: ROW[name] for name in names}})
    assert float(found["pred_tok_s_gpu"]) > 0
    assert "assumed" in found["note"]


def test_what_had_to_be_assumed_is_said():
    """A missing micro-batch is chosen to divide the batch, and the note says so."""
    assert "micro-batch 4 assumed" in predict({**ROW, "mbs": "", "act_ckpt": "full"})["note"]


def test_outcomes_are_not_looked_at(rows):
    """Predictions are the same with the measured columns removed: nothing leaks."""
    outcomes = (
        "tok_s_gpu",
        "tok_s_total",
        "step_s",
        "model_tflops_gpu",
        "hw_tflops_gpu",
        "mfu_pct",
        "hfu_pct",
        "peak_mem",
        "outcome",
    )
    for row in rows[::7]:
        hidden = {name: value for name, value in row.items() if name not in outcomes}
        assert predict(hidden) == predict(row)


INPUTS = [
    *("kind", "task", "model", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "params_total", "seq_len"),
    *("accel", "gpus", "framework", "precision", "tp", "pp", "vp", "cp", "ep", "sharding", "zero_stage", "mbs"),
    *("gbs_seqs", "act_ckpt", "notes", "tflops_convention"),
]
JUNK = st.sampled_from(["", "0", "1", "3", "7", "-1", "nan", "1e400", "1.5", "many", "64", "100000"])


@given(st.data())
@settings(deadline=None, max_examples=300)
def test_no_row_breaks_a_table(data):
    """Whatever stands in the cells, a row is predicted with finite figures or left empty with a reason."""
    row = dict(data.draw(st.sampled_from(ROWS)))
    for name in data.draw(st.lists(st.sampled_from(INPUTS), max_size=4)):
        row[name] = data.draw(JUNK)
    found = predict(row)
    assert found["note"]
    figures = [found[name] for name in COLUMNS[:-1]]
    if found["pred_fits"]:
        rate = float(found["pred_tok_s_gpu"])
        assert 0 < float(found["pred_low_tok_s_gpu"]) < rate < float(found["pred_high_tok_s_gpu"]) < math.inf
        assert 0 < float(found["pred_peak_mem_gb"]) < math.inf
    else:
        assert figures == [""] * len(figures)


def test_a_file_keeps_its_columns_and_gains_ours(rows, tmp_path):
    """Every row comes back in order, whole, with the eight columns after it."""
    target = tmp_path / "predictions.csv"
    count = predict_file(TABLE, target)
    with target.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        written = list(reader)
    assert tuple(reader.fieldnames[-len(COLUMNS) :]) == COLUMNS
    assert [{name: row[name] for name in rows[0]} for row in written] == rows
    assert count == sum(bool(row["pred_fits"]) for row in written)
    assert not list(tmp_path.glob("*.unfinished"))


def test_the_command_predicts_a_table(bench, tmp_path, monkeypatch, capsys):
    """``bench/planner.py --rows IN --out OUT`` writes the table with its predictions; one of them alone is refused."""
    rows, target = tmp_path / "rows.csv", tmp_path / "out.csv"
    rows.write_text("model,seq_len,accel,gpus,framework,tp,pp,mbs\nllama3_1_8b,8192,H100,8,torchtitan,1,1,1\n")
    monkeypatch.setattr("sys.argv", ["planner.py", "--rows", str(rows), "--out", str(target)])
    bench.main()
    assert "predicted 1 rows" in capsys.readouterr().out
    assert "pred_tok_s_gpu" in target.read_text()
    for words, message in (
        (["--rows", str(rows)], "--out OUT.csv together"),
        (["--rows", sys.executable, "--out", str(target)], "is not a CSV file in UTF-8"),
        (["--rows", str(tmp_path / "nowhere.csv"), "--out", str(target)], "nowhere.csv"),
    ):
        monkeypatch.setattr("sys.argv", ["planner.py", *words])
        with pytest.raises(SystemExit, match="2"):
            bench.main()
        assert message in capsys.readouterr().err


def test_a_range_is_as_wide_as_other_sources_need(bench):
    """A source of many rows has no more say than one of few; the range holds nine tenths of their common weight."""
    errors = {"many": [0.1] * 90 + [0.3] * 10, "few": [0.2, 0.5]}
    assert bench.spread(errors) == pytest.approx(0.5)
    assert bench.spread({"many": errors["many"]}) == pytest.approx(0.1)


def _row(rows, number, **changes):
    return parse_row({**next(row for row in rows if row["row"] == number), **changes})


def test_optimizers_of_an_age_differ(rows):
    """From 28 February 2022 on DeepSpeed's BF16 optimizer keeps gradients whole, in fp32, beside those in bf16."""
    before, after = (_row(rows, number).software for number in ("729", "740"))
    assert (before.gradient_bytes, after.gradient_bytes) == (2, 6)
    for number, outcome in (("737", "no"), ("738", "no"), ("739", "yes"), ("740", "yes")):
        found = predict(next(row for row in rows if row["row"] == number))
        assert found["pred_fits"] == outcome


def test_a_ranks_batch_goes_through_a_pipeline_in_pieces():
    """A micro-batch that is all of a rank's sequences is the rank's batch: they follow each other."""
    pipeline = {"pp": "2", "mbs": "4", "gbs_seqs": "16"}  # four data ranks
    found = parse_row({**ROW, **pipeline, "framework": "torchtitan"})
    assert (found.layout.micro_batch, found.layout.micro_batches) == (1, 4)
    assert "taken one by one through the pipeline" in found.assumed[0]
    other = parse_row({**ROW, **pipeline, "gbs_seqs": "32", "framework": "torchtitan"})
    assert (other.layout.micro_batch, other.layout.micro_batches) == (4, 2)


def test_segments_that_cannot_grow_keep_gaps(rows):
    """An interleaved pipeline needs more than its tensors do unless segments are expandable; reports count tensors."""
    fixed, growing = (memory_of(_row(rows, number)) for number in ("535", "536"))
    assert fixed.fragmentation > 5 * growing.fragmentation
    software = _row(rows, "535").software
    assert reading_gb(fixed, software) == reading_gb(growing, software) < growing.peak_gb
    # the gaps of the worst published run do not fit, those of the mean would
    assert fixed.peak_gb < fixed.capacity_gb < fixed.peak_gb + fixed.more_gaps_gb
    assert growing.fits
    assert growing.more_gaps_gb == 0
    note = predict(next(row for row in rows if row["row"] == "535"))["note"]
    assert "gaps may take" in note


def test_recipes_of_a_release_are_part_of_its_rows(rows):
    """Recomputed modules, CUDA graphs, overlap and offloaded layers come from the release's own recipes."""
    found = _row(rows, "391")
    assert (found.layout.repeated_modules, found.layout.recompute) == (("layernorm", "moe_act"), "none")
    assert (found.software.graphs, found.software.overlaps_experts) == ("none", False)
    assert _row(rows, "307").layout.recompute == "mlp"
    assert (_row(rows, "301").software.graphs, _row(rows, "301").software.overlaps_experts) == ("all", True)
    offloaded = _row(rows, "420")
    assert (offloaded.layout.sharding, offloaded.layout.offloaded_layers) == ("full", 40)
    kept = replace(offloaded, layout=replace(offloaded.layout, offloaded_layers=0))
    assert memory_of(offloaded).activations < 0.6 * memory_of(kept).activations


def memory_of(case):
    """Return the memory of a parsed row."""
    return memory(case.model, case.layout, case.accelerator, case.software)


def test_tables_are_met_as_the_bench_says(rows):
    """Over the development table the median error of speed is under 10 %, of memory under 10 %."""
    pairs = [(row, predict(row)) for row in rows]
    for measured, predicted in (("tok_s_gpu", "pred_tok_s_gpu"), ("peak_mem", "pred_peak_mem_gb")):
        errors = sorted(
            abs(float(found[predicted]) / float(row[measured]) - 1)
            for row, found in pairs
            if row[measured] and found[predicted]
        )
        assert errors[len(errors) // 2] < 0.1


@pytest.mark.parametrize(
    ("words", "name", "tokens_per_s", "tflops", "sequence"),
    [
        ("6N+12Lhs per token", "MPT-7b", 4641, 200, 2048),
        ("6(N-Vh)+6Lhs (causal)", "llama3_8b", 14079, 725, 8192),
        ("6(N-Vh)+6Lhs (causal)", "deepseek_v3", 3328, 864, 4096),
        ("6(N-Vh)+12Lhs", "llama3_70b", 1444, 695, 8192),
    ],
)
def test_conventions_are_recomputed(words, name, tokens_per_s, tflops, sequence):
    """Published FLOP/s follow from published tokens/s within one per cent."""
    model = Model.of(name) if not name.startswith("MPT") else _mpt()
    flops = convention(words, {"model": name}).per_token(model, sequence)
    assert tokens_per_s * flops / 1e12 == pytest.approx(tflops, rel=0.01)


@pytest.mark.parametrize(
    ("name", "container", "tokens_per_s", "tflops", "sequence"),
    [
        ("gpt_oss_120b", "26.04 NeMo Container", 13045, 355, 4096),
        ("gpt_oss_120b", "25.11 NeMo Container", 18347, 565, 8192),
        ("gpt_oss_120b", "26.06 NeMo Container", 33166, 1081, 4096),
        ("Nemotron_3_Nano", "26.02.01 NeMo Container", 14890, 331, 8192),
    ],
)
def test_megatron_counts_otherwise_before_26_06(name, container, tokens_per_s, tflops, sequence):
    """Windows and gates other than SiLU are not seen before 26.06; a hybrid's scan is always wider than it is."""
    found = convention("6(N-Vh)+6Lhs (causal)", {"model": name, "notes": container})
    assert tokens_per_s * found.per_token(Model.of(name), sequence) / 1e12 == pytest.approx(tflops, rel=0.01)


def test_rows_that_contradict_themselves_are_reported(bench):
    """The bench reports 640 ranks on 320 GPUs and 18B that are 28B, with the arithmetic, and nothing in a sound row."""
    found = {
        row["row"]: list(bench.consistency.contradictions(row, parse_row(row)))
        for row in ROWS
        if row["row"] in ("1", "654", "657")
    }
    assert found["1"] == []
    assert "= 640 ranks, but the machines have 320" in found["654"][0]
    assert "28.2B parameters, the row says 18.0B" in found["657"][0]


def test_rounding_is_no_contradiction(bench):
    """13 sequences a second may be 12.5: 2.3 % more FLOP/s than printed contradict nothing."""
    row = next(row for row in ROWS if row["row"] == "330")
    found = bench.consistency.recount(row, parse_row(row))
    assert found.error > bench.consistency.CLOSE
    assert found.explained


def _mpt():
    return Model(
        name="MPT-7b", hidden_size=4096, layers=32, heads=32, kv_heads=32, head_dim=128, ffn=16384, vocab=50368,
        tied=True, gated=False, bias="all", norm_vectors=2, learned_positions=2048,
    )  # fmt: skip


@pytest.fixture
def bench(monkeypatch):
    """Import ``bench/planner.py`` as a module."""
    folder = TABLE.parents[1]
    monkeypatch.syspath_prepend(str(folder))
    spec = importlib.util.spec_from_file_location("planner_bench", folder / "planner.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_bench_runs_from_a_clone(bench, capsys, monkeypatch):
    """``bench/planner.py --in-sample`` prints errors by group, the seeds and which goals are met."""
    monkeypatch.setattr("sys.argv", ["planner.py", "--in-sample"])
    bench.main()
    printed = capsys.readouterr().out
    for words in ("llm-foundry", "321 with rounding", "contradict themselves", "the seed's run", "7.6 days", "8 of 8"):
        assert words in printed
    missed = [line.split("  ")[1] for line in printed.splitlines() if line.endswith("MISSED")]
    assert missed == ["found of those out of memory"]
