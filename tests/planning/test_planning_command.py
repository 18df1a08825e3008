"""The command ``podwright plan``."""

import argparse
import json
import re
import shlex
import sys
from xml.etree import ElementTree as ET

import pytest

from podwright.planning.command import run
from podwright.planning.plan_arguments import add_arguments
from podwright.planning.plan_text import COLUMNS
from podwright_common.exit_status import FAILED, OK, WRONG_INPUT

P5 = ("--model", "llama3_2_1b", "--instance", "ml.p5.48xlarge", "--nodes", "2")
G5 = ("--model", "llama3_2_1b", "--instance", "ml.g5.12xlarge", "--nodes", "4", "--seq-len", "8192")


@pytest.fixture
def plan(capsys):
    """Run the command. Return exit status, stdout and stderr."""

    def call(*words: object) -> tuple[int, str, str]:
        parser = argparse.ArgumentParser()
        add_arguments(parser)
        status = run(parser.parse_args([str(word) for word in words]))
        return status, *capsys.readouterr()

    return call


def test_a_plan_explains_itself(plan):
    """A plan shows memory, speed, time, cost, loss, flags and roofline, in 80 columns."""
    status, out, _ = plan(*G5, "--tokens", "78e9")
    assert status == OK
    assert max(map(len, out.splitlines())) <= COLUMNS
    assert re.match(r"Fits: 78B tokens take \S+ days and [\d,]+ USD, as predicted below\n\n", out)
    for words in (
        "1,235,814,400 parameters",
        "Memory per GPU",
        "optimizer",
        "MFU",
        "HFU",
        "bound by",
        "78B tokens take",
        "USD",
        "kWh",
        "Loss about",
        "To run it: podwright-train launch --preset=llama3_2_1b --nodes=4 -- ",
        "--max-steps=",
        "--gradient-accumulation-steps=",
        "instance_type: ml.g5.12xlarge",
        "Roofline",
    ):
        assert words in out


def test_a_plan_takes_the_prices_of_its_region(plan, tmp_path):
    """--region sets the price and its label, cluster.yaml gives it otherwise, and an unknown region is refused."""
    tokens = ("--tokens", "1e9", "--json")
    costs = [json.loads(plan(*G5, *tokens, "--region", name)[1])["cost"] for name in ("us-east-1", "eu-central-1")]
    machines = [item["usd"]["accelerated machines"] for item in costs]
    assert machines[1] / machines[0] == pytest.approx(1.5156 / 1.212)
    assert costs[1]["price_note"] == "EC2 on-demand, eu-central-1: HyperPod's own price is not public"
    file = tmp_path / "cluster.yaml"
    group = "{name: workers, role: compute, instance_type: ml.g5.12xlarge, count: 4}"
    file.write_text(f"region: eu-central-1\ncluster: {{instance_groups: [{group}]}}\n")
    assert json.loads(plan(file, *G5[:2], *G5[-2:], *tokens)[1])["cost"] == costs[1]
    status, _, err = plan(*G5, "--region", "eu-central-9")
    assert (status, err.strip()) == (WRONG_INPUT, "podwright plan: --region: AWS has no region eu-central-9")


def test_json_has_the_same_figures(plan):
    """The items of ``--json`` add up to its totals."""
    _, out, _ = plan(*G5, "--tokens", "78B", "--json")
    content = json.loads(out)
    sums = ("peak", "capacity", "headroom", "error")
    items = {name: size for name, size in content["memory_gb"].items() if name not in sums}
    assert sum(items.values()) == pytest.approx(content["memory_gb"]["peak"])
    assert content["tokens"] == 78e9
    assert content["cost"]["total_usd"] == pytest.approx(sum(content["cost"]["usd"].values()))


def test_what_does_not_fit_has_another_status(plan):
    """Exit status 1, and first of all the message a check would print."""
    status, out, _ = plan(*G5, "--micro-batch", "3", "--recompute", "none")
    assert status == FAILED
    assert out.startswith("DOES NOT FIT: this run needs ")
    assert "GB per GPU, an A10G has 23.1: use" in out
    assert "To run it" not in out
    assert "No command to run it: this run needs" in out


def test_one_node_sends_no_checkpoints(plan):
    """Checkpoints in memory go to the next node where there is one."""
    words = (*G5[:4], "--tokens", "1B")
    assert "to the next node" in plan(*words, "--nodes", "2")[1]
    assert "to the next node" not in plan(*words)[1]


def test_a_plan_that_breaks_its_limits_says_so(plan, tmp_path):
    """Time and cost on a given cluster are compared with --deadline and --budget; status 1 if they are more."""
    words = (*G5, "--tokens", "1B")
    for within in (("--deadline", "3d"), ("--budget", "1000"), ("--deadline", "3d", "--budget", "1000", "--search")):
        assert plan(*words, *within)[0] == OK
    status, out, _ = plan(*words, "--deadline", "1h", "--budget", "$10")
    said = re.sub(r"[\d.]+ h:|[\d,]+ USD:", "N:", " ".join(out.partition("\n\n")[0].split()))
    assert (status, said) == (
        FAILED,
        "Fits the memory, but takes N: longer than --deadline 1h, and costs N: more than --budget $10",
    )
    assert "No command to run it: takes" in out
    file = tmp_path / "cluster.yaml"
    group = "{name: workers, role: compute, instance_type: ml.g5.12xlarge, count: 4}"
    file.write_text(f"cluster: {{instance_groups: [{group}]}}\n")
    status, out, _ = plan(file, *G5[:2], "--tokens", "1B", "--deadline", "1h", "--json")
    assert (status, json.loads(out)["command"]) == (FAILED, None)


@pytest.mark.parametrize("name", ["gpt2", "gemma_2b"])
def test_a_model_with_other_parts_gets_no_command(plan, name):
    """A model that the trainer would train as a Llama of its size, such as Gemma with its GELU, is refused."""
    _, out, _ = plan("--model", name, *G5[2:])
    assert f"No command to run it: podwright-train does not support a model like {name}" in out


def test_what_fits_with_no_sequence_needs_other_accelerators(plan):
    """Shorter sequences are advised only where they help; where the weights are too large, other machines are."""
    _, out, _ = plan("--model", "llama3_1_405b", "--instance", "ml.g5.12xlarge", "--nodes", "1")
    assert "use accelerators with more memory: `podwright plan --minimum` lists" in " ".join(out.split())
    _, out, _ = plan(*G5[:-1], str(2**20))
    assert "shorten the sequence or use accelerators with more memory" in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "said", "tables"),
    [
        (G5, "podwright-train supports all of these", 2),
        (P5, "Best that podwright-train supports", 3),
        ([*P5, "--model", "gpt2"], "podwright-train supports none of these", 2),
        ([*P5, "--model", "DeepSeek-V3"], "No layout on 16 GPUs fits with 13 % to spare", 0),
    ],
)
def test_a_search_lists_layouts(plan, words, said, tables):
    """``--search`` lists the best layouts, those that podwright-train supports if they are others, and the front."""
    _, out, _ = plan(*words, "--search")
    assert max(map(len, out.splitlines())) <= COLUMNS
    assert said in out
    assert out.count("tokens/s/GPU  MFU") == tables


@pytest.mark.parametrize("words", [P5, (*P5[:-1], "8", "--model", "llama3_1_70b", "--seq-len", "8192")])
def test_a_search_says_how_to_run_its_best_layout(plan, words):
    """The one command that is printed is that of the first layout which podwright-train supports."""
    _, out, _ = plan(*words, "--search")
    tables, _, printed = out.partition("To run the best of these: ")
    assert "To run it" not in out
    options = shlex.split(printed.replace("\\\n", ""))
    table = tables.split("Best that podwright-train supports")[-1].split("Best of")[-1].splitlines()
    best = next(line.split() for line in table if line.endswith(" yes"))
    tensor, pipeline, context, expert, _, micro_batch, _, micro_batches, recompute, _ = best[3:]
    pieces = int(micro_batches) if int(pipeline) > 1 else 1
    wanted = {f"--train-batch-size={int(micro_batch) * pieces}"}
    degrees = {"tensor": tensor, "pipeline": pipeline, "context": context, "expert": expert}
    wanted |= {f"--{name}-parallel={degree}" for name, degree in degrees.items() if degree != "1"}
    assert wanted <= set(options)
    assert ("--no-activation-checkpointing" in options) == (recompute == "none")
    no_command = plan(*words[2:], "--model", "llama2_7b", "--search")[1]
    assert "No command to run the best of these: the model has 32,000 tokens" in no_command


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ((), "no model: give --model"),
        (("--model", "llama3_1_8b"), "no instance type: give --instance"),
        (("--model", "llama3_1_9b", "--instance", "ml.p5.48xlarge"), "did you mean llama3"),
        (("--model", "llama3_1_8b", "--instance", "ml.p5.49xlarge"), "Did you mean ml.p5"),
        ((*G5[:4], "--nodes", "0"), "--nodes: got 0, need more than zero"),
        ((*G5, "--tokens=-3B"), "--tokens: got -3B, need more than zero"),
        ((*G5, "--micro-batch", "1.5"), "need a whole number"),
        (("--budget", "5000", "--deadline", "7"), "Write 7d for days"),
        (("--deadline", "7d"), "--deadline needs --model or --budget"),
        (("--nxdt", "nowhere.json"), "nowhere.json"),
        (("--nxdt", sys.executable), "cannot read --nxdt"),
        ((*G5, "--serve", "1T"), "--serve needs --tokens"),
        ((*G5, "--seq-len", "1e400"), "--seq-len: got 1e400, need at most 1e+18"),
        ((*G5, "--tokens", "nan"), "--tokens: got 'nan', need a number"),
        ((*G5, "--tokens", "", "--serve", " "), "--tokens, --serve: got nothing, need a number"),
        ((*G5, "--search", "--minimum"), "--minimum and --search: give one of them"),
        ((*G5, "--tokens", "1B", "--deadline", "banana"), "--deadline: got 'banana', need a number like 7d or 36h"),
        ((*G5, "--tokens", "1B", "--deadline", "0d", "--budget", "x"), "0d, need more than zero\n--budget: got 'x'"),
        ((*G5, "--deadline", "3d"), "--deadline and --budget need --tokens, which set time and cost"),
        ((*G5, "--minimum", "--deadline", "3d"), "--deadline: give it without --minimum"),
        ((*G5[:2], "--nodes", "3", "--budget", "50"), "--nodes: give it with --instance, or leave it out"),
        ((*G5[:2], "--search", "--budget", "50", "--deadline", "3d"), "--budget and --deadline: give them without"),
        ((*G5[:4], "--nodes", "x"), "--nodes: got 'x', need a whole number\n"),
        ((*G5, "--search", "--json"), "--search prints tables"),
        ((*G5, "--capacity-block", "--usd-per-hour", "3"), "--capacity-block and --usd-per-hour: give one price"),
    ],
)
def test_wrong_input_is_answered_with_what_to_do(plan, words, hint):
    """Wrong input ends with exit status 2 and a message that says what to give."""
    status, _, err = plan(*words)
    assert status == WRONG_INPUT
    assert hint in err


def test_the_roofline_is_a_picture(plan, tmp_path):
    """The SVG is well-formed and has a point per kind of product."""
    target = tmp_path / "roofline.svg"
    plan(*G5, "--svg", target)
    circles = [item for item in ET.fromstring(target.read_text()).iter() if item.tag.endswith("circle")]  # noqa: S314 - our own
    assert len(circles) == 5


def test_files_are_read(plan, tmp_path):
    """Type and number come from cluster.yaml, model and batch from run.yaml; flags win."""
    cluster, options = tmp_path / "cluster.yaml", tmp_path / "run.yaml"
    cluster.write_text(
        "cluster:\n  instance_groups:\n"
        "    - {name: controller, role: controller, instance_type: ml.m5.xlarge, count: 1}\n"
        "    - {name: workers, role: compute, instance_type: ml.g5.12xlarge, count: 4}\n"
    )
    options.write_text(
        "preset: llama3_2_1b\nvocab_size: 50432\ntrain_batch_size: 1\nmax_context_width: 4096\n"
        "activation_checkpointing: 1\nmax_steps: 200\n"
    )
    _, out, _ = plan(cluster, "--run", options, "--json")
    content = json.loads(out)
    assert content["cluster"] == {"instance_type": "ml.g5.12xlarge", "nodes": 4, "gpus": 16}
    assert content["layout"]["sequence"] == 4096
    assert content["layout"]["recompute"] == "full"
    assert content["model"]["parameters"] == 1_235_814_400 - (128_256 - 50_432) * 2048
    assert content["tokens"] == 200 * 4096 * 16
    _, out, _ = plan(cluster, "--run", options, "--nodes", "2", "--json")
    assert json.loads(out)["cluster"]["nodes"] == 2


def test_a_run_with_a_wrong_option_is_refused(plan, tmp_path):
    """The message is the trainer's: the value given and the values allowed."""
    options = tmp_path / "run.yaml"
    options.write_text("preset: llama9\ntrain_batch_size: 0\n")
    status, _, err = plan("--run", options, "--instance", "ml.g5.12xlarge")
    assert status == WRONG_INPUT
    assert "llama3_2_1b" in err
    assert "train_batch_size" in err


@pytest.mark.parametrize(
    "text",
    ["cluster: {instance_groups: []}", "cluster:", "cluster: [1]", "cluster: {instance_groups: [{role: compute}, 7]}"],
)
def test_a_file_without_workers_is_refused(plan, tmp_path, text):
    """The message names the file and the command with details."""
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(text)
    status, _, err = plan(cluster, "--model", "llama3_2_1b")
    assert status == WRONG_INPUT
    assert "role: compute" in err


def test_capacity_blocks_have_prices_of_their_own(plan):
    """The plan names the date of a capacity block's price, and --usd-per-hour if it knows no price."""
    p5 = ("--model", "llama3_1_8b", "--instance", "ml.p5.48xlarge", "--tokens", "1B")
    _, out, _ = plan(*p5, "--capacity-block")
    assert "capacity block, December 2024" in out
    block, demand = (json.loads(plan(*p5, "--json", *more)[1])["cost"] for more in (("--capacity-block",), ()))
    assert block["usd"]["accelerated machines"] == pytest.approx(39.33 * block["hours"])
    assert block["total_usd"] < demand["total_usd"]
    status, _, err = plan(*G5, "--capacity-block")
    assert status == WRONG_INPUT
    assert "--usd-per-hour" in err


def test_a_runs_own_curve_is_continued(plan, tmp_path):
    """The loss at more tokens is forecast from metrics.jsonl; a step that was repeated after a resume counts once."""
    curve = tmp_path / "metrics.jsonl"
    lines = [{"event": "start", "step": 0}, {"event": "train", "step": 9, "sequences": 9 * 64, "loss": 99.0}]
    for step in range(1, 2001):
        tokens = step * 64 * 1024
        lines.append({"event": "train", "step": step, "sequences": step * 64, "loss": 2.0 + 500 / tokens**0.4})
    curve.write_text("".join(json.dumps(line) + "\n" for line in lines))
    status, out, _ = plan("--curve", curve, "--seq-len", "1024", "--tokens", "10B")
    assert status == OK
    assert float(out.split("tokens: ")[1].split()[0]) == pytest.approx(2.0 + 500 / 1e10**0.4, abs=0.01)
    status, _, err = plan("--curve", curve, "--tokens", "10B")
    assert status == WRONG_INPUT
    assert "--seq-len" in err
    with curve.open("ab") as file:
        file.write(b'[1]\nnull\n{}\n\xff\n{"event": "train", "step": 7, "sequences": 448, "loss": NaN}\n')
        file.write(b'{"event": "train", "step": 2001, "sequences": null, "loss": 2.4}\n{"event": "tra')
    assert plan("--curve", curve, "--seq-len", "1024", "--tokens", "10B")[:2] == (OK, out)


def test_money_and_time_find_a_model(plan):
    """A budget and a deadline find models and clusters."""
    status, out, _ = plan("--budget", "5000", "--deadline", "7d")
    assert status == OK
    assert "ml." in out
    _, out, _ = plan("--budget", "5000", "--deadline", "7d", "--json")
    offers = json.loads(out)
    assert 0 < offers[0]["usd"] <= 5000
    assert offers[0]["hours"] <= 7 * 24


def test_the_fewest_machines_are_listed(plan):
    """``--minimum`` lists the number of nodes that hold the model, per instance type."""
    _, out, _ = plan("--model", "llama2_13b", "--seq-len", "4096", "--minimum", "--instance", "ml.g6e.12xlarge")
    assert "2 nodes" in out
    _, out, _ = plan("--model", "llama2_13b", "--minimum", "--instance", "ml.g6e.12xlarge", "--json")
    assert json.loads(out) == {"ml.g6e.12xlarge": 2}


@pytest.mark.parametrize("text", ["[", "[]", "{}", '{"accelerator": "trn1-chip", "layout": {"rank": 1}}'])
def test_a_file_that_is_no_run_of_nxd_training_is_refused(plan, tmp_path, text):
    """The message says who writes such a file."""
    (tmp_path / "run.json").write_text(text)
    status, _, err = plan("--nxdt", tmp_path / "run.json")
    assert status == WRONG_INPUT
    assert err.startswith("podwright plan: ")
    assert any(words in err for words in ("is not JSON", "an object, not list", "`podwright-train launch` writes the"))


def validated(folder, **changes):
    """Write what ``podwright validate --output`` does, as far as the planner reads it."""
    document = {
        "schema": "podwright.validate/1",
        "instance_type": "ml.p5.48xlarge",
        "pair_bus_gb_s": 437.0,
        "node_bus_gb_s": 470.0,
        "transports": ["efa"],
        **changes,
    }
    path = folder / "validate.json"
    path.write_text(json.dumps(document))
    return path


P5 = ("--model", "llama3_1_70b", "--instance", "ml.p5.48xlarge", "--nodes", "16", "--seq-len", "8192")


def test_a_measured_network_moves_the_prediction(plan, tmp_path):
    """A quarter of the bandwidth is slower than the data sheet's; the data sheet's own figure gives the same plan."""

    def tokens_per_s(*words):
        _, out, _ = plan(*P5, "--json", *words)
        return json.loads(out)["speed"]["tokens_per_s_per_gpu"]

    usual = tokens_per_s()
    slow = tokens_per_s("--measured", validated(tmp_path, pair_bus_gb_s=92.0))
    same = tokens_per_s("--measured", validated(tmp_path, pair_bus_gb_s=0.92 * 400, node_bus_gb_s=None))
    assert slow < 0.97 * usual
    assert same == pytest.approx(usual)
    assert "network as measured: 92 GB/s" in plan(*P5, "--measured", validated(tmp_path, pair_bus_gb_s=92.0))[1]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"schema": "podwright.status/1"}, "not podwright.validate/1"),
        ({"transports": ["gloo over TCP"]}, "measured on CPUs"),
        ({"pair_bus_gb_s": None}, "no pair of nodes was measured"),
        ({"instance_type": "ml.p5en.48xlarge"}, "measured on ml.p5en.48xlarge, but the plan is for ml.p5.48xlarge"),
    ],
)
def test_measurements_that_do_not_fit_are_refused(plan, tmp_path, changes, expected):
    """Another document, CPU ranks, a single node and another instance type are one line each."""
    status, _, errors = plan(*P5, "--measured", validated(tmp_path, **changes))
    assert status == WRONG_INPUT
    assert expected in errors
    assert len(errors.splitlines()) == 1
