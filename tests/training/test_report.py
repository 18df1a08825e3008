"""The report shows what happened, restarts included."""

import base64
import html
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from podwright_training.__main__ import main
from podwright_training.events import event_of
from podwright_training.report import summary
from podwright_training.report.curve import forecast, judge, smooth
from podwright_training.report.figures import tables
from podwright_training.report.history import History, ReportError
from podwright_training.report.page import ReportFigures
from podwright_training.run_folder import RunFolder


def train(step, ranks=2):
    """An event as the trainer writes it: the loss falls from 7.6 towards 3."""
    noise = random.Random(step).gauss(0, 0.12)  # noqa: S311 - not for cryptography
    return {
        "event": "train", "step": step, "loss": 3 + 4.6 * math.exp(-step / 60) + noise, "grad_norm": 1.0,
        "lr": 2e-3 * min(step / 20, 0.5 + 0.5 * math.cos(math.pi * step / 300)), "tokens_per_s": 9000.0 + step,
        "step_s": 0.4, "data_s": 0.01, "lag_s": 0.0, "mfu": None, "time": 1.7e9 + step * 200 / 300, "batch_digest": "0",
        "batch_sequences": 4 * ranks, "sequences": 4 * (2 * step + 2 * min(step, 100)),
    }  # fmt: skip


def validation(step):
    """An event as the trainer writes it."""
    loss = 3.1 + 4.6 * math.exp(-step / 60)
    return {"event": "validation", "step": step, "loss": loss, "perplexity": math.exp(loss), "tokens": 4096}


def start(step, world_size):
    """An event as the trainer writes it."""
    resumed_from = f"checkpoints/step-{step:08d}" if step else None
    names = {"job_id": "7", "parameters": 4_200_000, "resumed_from": resumed_from}
    return {"event": "start", "step": step, "world_size": world_size, **names}


GUARD = {"event": "guard", "step": 120, "policy": "skip", "reason": "spike", "loss": "99.0"}


@pytest.fixture
def folder(tmp_path):
    """A run of its own."""
    return make_run(tmp_path / "tiny")


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """A run with its report."""
    run = make_run(tmp_path_factory.mktemp("runs") / "tiny")
    write([run.root], "--usd-per-hour", "36")
    return run


def make_run(root):
    """A run of 300 steps: killed after step 137, resumed from step 100 with fewer ranks."""
    run = RunFolder(root)
    run.root.mkdir()
    first = [{**start(0, 4), "time": 1.7e9}]
    for step in range(1, 138):
        first += [{**train(step, ranks=4), "loss": 99.0} if step > 100 else train(step, ranks=4)]
        first += [validation(step)] if step % 50 == 0 else []
        first += [GUARD] if step == 120 else []
    second = [start(100, 2)]
    for step in range(101, 301):
        spike = {"loss": 9.0} if step in {240, 241} else {}
        later = {"time": train(step)["time"] + 100}
        second += [train(step) | spike | later, *([validation(step)] if step % 50 == 0 else [])]
    second += [{"event": "checkpoint", "step": step, "path": "x", "paused_s": 0.1} for step in (200, 300)]
    end = {"event": "end", "step": 300, "reason": "max_steps"}
    run.metrics.write_text("".join(json.dumps(event) + "\n" for event in [*first, *second, end]))
    config = {"preset": "tiny", "train_batch_size": 4, "max_context_width": 128, "lr": 2e-3}
    run.config.write_text(yaml.safe_dump(config))
    run.samples.write_text("The <b>index</b> is used.\n")
    run.evaluation.write_text('{"perplexity": 21.5}')
    return run


def test_the_last_word_on_a_step_counts(folder):
    """Steps that were done twice are shown as the run that went on did them."""
    history = History.of(folder)
    assert [event.step for event in history.train] == list(range(1, 301))
    assert max(event.loss for event in history.train) < 10
    assert [event.step for event in history.validation] == [50, 100, 150, 200, 250, 300]


@pytest.mark.parametrize(
    "back", [start(100, 2), {**GUARD, "policy": "rollback", "checkpoint": "checkpoints/step-00000100"}]
)
def test_what_training_went_back_behind_does_not_count(tmp_path, back):
    """Until the steps are done again, the run stands where it is: step, figures, verdict and time left."""
    events = [{**start(0, 4), "time": 1.7e9}, *map(train, range(1, 101)), *map(validation, (50, 100, 150))]
    events += [{**train(step), "loss": math.nan} for step in range(101, 200)]
    again = [{**train(step), "time": 1.7e9 + 3600} for step in range(101, 111)]
    history = history_of(tmp_path, *events, back, *again, config={"max_steps": 210})
    assert (history.last_step, history.hours, summary.hours_left(history)) == (110, 1.0, 100 * 0.4 / 3600)
    assert [event.step for event in history.validation] == [50, 100]
    assert summary.verdict(history).word == "healthy"


def history_of(folder, *events, config=None):
    """The history of a run with these events."""
    run = RunFolder(folder)
    run.metrics.write_text("".join(json.dumps(event) + "\n" for event in events))
    run.config.write_text(yaml.safe_dump(config or {}))
    return History.of(run)


def test_a_clock_may_be_wrong(tmp_path):
    """Set back, it goes on from where it was; a date after the year 9999 is left out."""
    events = [{**start(0, 2), "time": 1.7e9}, train(1)]
    later = [{**train(step), "time": 1.7e9 - 7200 + step} for step in (2, 3602)]
    history = history_of(tmp_path, *events, *later, config={"max_steps": 10**13})
    assert history.hours == pytest.approx((200 / 300 + 3600) / 3600)
    assert tables(history)["train"]["hours"] == sorted(tables(history)["train"]["hours"])
    assert "expected end" not in dict(summary.headline(history))


def test_the_end_of_long_metrics_knows_when_the_run_began(tmp_path):
    """The first event counts with the last ones, so hours and cost are those of the whole run."""
    events = [{**start(0, 2), "time": 1.7e9}, *map(train, range(1, 301))]
    whole = history_of(tmp_path, *events)
    end = History.of(RunFolder(tmp_path), last_bytes=5000)
    assert len(end.train) < 30
    assert (end.hours, end.starts[0].parameters) == (whole.hours, 4_200_000)


def write(folder, *arguments):
    """Run the command."""
    assert run(folder, *arguments) == 0


def run(folder, *arguments):
    """Run the command and return its exit status, as the program does."""
    return main(["report", "--run-dir", *map(str, folder), *arguments])


def text_of(page):
    """The page's words, without marks, scripts and styles."""
    words = re.sub(r"<(script|style).*?</\1>|<[^>]*>", " ", page.read_text(), flags=re.DOTALL)
    return " ".join(html.unescape(words).split())


@pytest.mark.parametrize("price", ["-3", "nan", "inf"])
def test_a_price_below_zero_is_refused(price, tmp_path, capsys):
    """And one that is no number of dollars."""
    assert run([tmp_path], f"--usd-per-hour={price}") == 2
    assert capsys.readouterr().err == f"error: --usd-per-hour: got {price}, need 0 or more\n"


@pytest.mark.slow
def test_page(reported):
    """The page has the figures, verdict, restart, events, configuration, cost and samples, and loads nothing."""
    page = reported.report / "index.html"
    text = text_of(page)
    for words in (
        "Ended after step 300: max_steps.",
        f"validation perplexity {validation(300)['perplexity']:.2f}",
        "tokens seen 409,600",
        "cost so far $3.00",  # 300 s at $0.01 a second
        "tokens per second 9,150",
        "tokens per step 1,024",
        "stopped after step resumed after step ranks 137 100 2",
        "guard step 120, policy skip, reason spike",
        "Lines mark restarts, spikes and steps where the guard stepped in. Ticks mark checkpoints.",
        "the loss jumped at step 240",
        "preset tiny",
        "The <b>index</b> is used.",
        "perplexity 21.5",
    ):
        assert words in text, words
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page.read_text())
    assert page.stat().st_size < 1_000_000


def test_the_sources_of_a_mixture_have_a_figure(folder):
    """Tokens by source are curves with the sources' names, and the epoch stands at the top."""
    events = [{**train(step), "epoch": 1.5, "source_tokens": {"web": 8 * step, "step": step}} for step in range(1, 9)]
    folder.metrics.write_text("".join(json.dumps(event) + "\n" for event in [start(0, 2), *events]))
    drawing = ReportFigures.of([History.of(folder)])
    (figure,) = (figure for figure in drawing.figures if figure.name == "sources")
    assert [line.label for line in figure.lines] == ["web", "step"]
    assert [drawing.data["sources"][line.column][-1] for line in figure.lines] == [64, 8]
    assert ("epoch", "1.5") in summary.headline(History.of(folder))


@pytest.mark.slow
def test_the_page_says_how_much_of_each_source_was_read(folder):
    """The last count that counts is a table, and changes of the weights are events."""
    weights = {"event": "mixture", "step": 100, "from_sequence": 800, "weights": {"web": 3, "<b>": 0.5}, "added": []}
    reads = [
        {
            "event": "read", "step": step, "source_sequences": {"web": 3 * step, "<b>": step},
            "source_documents": {"web": 1200, "<b>": 7}, "source_tokens": {"web": 3840, "<b>": 1280},
            "source_epochs": {"web": 0.5, "<b>": 1.25},
        }
        for step in (200, 300)
    ]  # fmt: skip
    with folder.metrics.open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in (weights, *reads))
    assert list(summary.by_source(History.of(folder))) == [
        ("web", "75.0%", "1,200", "3,840", "0.5"), ("<b>", "25.0%", "7", "1,280", "1.25")
    ]  # fmt: skip
    write([folder.root])
    text = text_of(folder.report / "index.html")
    assert "Data by source source sequences documents tokens epochs web 75.0% 1,200 3,840 0.5 <b> 25.0% 7" in text
    assert "mixture step 100, from_sequence 800, weights web=3 <b>=0.5" in text


@pytest.mark.slow
def test_datasets_and_samples_of_a_validation(folder):
    """Each dataset has its points, the last ones a row, and every step's texts are listed."""
    losses = [{"web": 2.0, "code": 1.5}, {"web": 1.0, "code": math.nan}]
    events = [{**validation(50 * number), "losses": each} for number, each in enumerate(losses, start=1)]
    texts = {"event": "sample", "step": 100, "texts": ["The sea is wide", "<i>"]}
    with folder.metrics.open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in (*events, texts, validation(300) | {"losses": losses[1]}))
    write([folder.root])
    drawing = ReportFigures.of([History.of(folder)])
    points = {line.label: drawing.data[line.table][line.column] for line in drawing.figures[0].lines}
    assert points["validation loss, web"] == [2.0, 1.0, None, None, None, 1.0]
    assert points["validation loss, code"] == [1.5, None, None, None, None, None]
    text = text_of(folder.report / "index.html")
    assert "Validation by dataset dataset loss perplexity web 1.0000 2.718 code nan nan" in text
    assert "Samples by step step text 100 The sea is wide <i>" in text


def test_moments_are_where_they_happened(reported):
    """The restart is at its checkpoint, the guard at its step, the spike at its first step, each checkpoint at its."""
    moments = ReportFigures.of([History.of(reported)]).moments
    assert {(mark.kind, mark.at["step"]) for mark in moments} == {
        ("restart", 100), ("guard", 120), ("spike", 240), ("checkpoint", 200), ("checkpoint", 300),
    }  # fmt: skip


def test_figures(reported):
    """Every figure is a picture and a drawing with every curve named, the same each time."""
    names = ["gradient", "loss", "step-time", "throughput"]
    files = sorted(path.name for path in reported.report.iterdir())
    assert files == sorted(
        ["index.html", "time.md", *(f"{name}.{suffix}" for name in names for suffix in ("png", "svg"))]
    )
    drawing = (reported.report / "loss.svg").read_bytes()
    assert (reported.report / "loss.png").read_bytes().startswith(b"\x89PNG")
    ET.fromstring(drawing)  # noqa: S314 - our own file
    marked = ("restart from a checkpoint", "guard stepped in", "spike", "checkpoint")
    for name in ("each step", "smoothed", "validation loss", "learning rate", *marked):
        assert name.encode() in drawing
    write([reported.root])
    assert (reported.report / "loss.svg").read_bytes() == drawing


BROWSER = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)


@pytest.fixture
def browse(tmp_path):
    """Open an address in a headless browser without network: the page after its scripts, or a picture of it."""
    if BROWSER is None:
        pytest.skip("no headless Chromium here: tools/setup.sh installs it where Debian's packages can be had")

    def open_page(address, *arguments):
        flags = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={tmp_path}/b")
        offline = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
        done = subprocess.run(
            [BROWSER, *flags, offline, *arguments, address], capture_output=True, text=True, timeout=500, check=True
        )
        return done.stdout

    return open_page


def colours(picture):
    """Number of pixels of each colour."""
    import matplotlib.image as mpl_image  # takes long, which each test worker would spend while it collects

    image = np.asarray(mpl_image.imread(picture))[..., :3]
    return Counter(map(tuple, (image * 255).round().astype(int).reshape(-1, 3).tolist()))


@pytest.mark.parametrize(
    ("scheme", "page", "curve"), [(0, (20, 24, 31), (121, 159, 203)), (1, (255, 255, 255), (31, 95, 168))]
)
def test_browser_draws_it(reported, browse, tmp_path, scheme, page, curve):
    """A browser without network draws every figure, on a dark and on a light page, on the width of a telephone too."""
    address = (reported.report / "index.html").as_uri()
    picture = tmp_path / "page.png"
    look = (f"--blink-settings=preferredColorScheme={scheme}", "--window-size=400,1600")
    assert 'data-drawn="4"' in browse(address, *look, "--dump-dom")
    browse(address, *look, f"--screenshot={picture}")
    seen = colours(picture)
    assert seen.most_common(1)[0][0] == page
    assert seen[curve] > 100


USED = """<script>
const plot = document.querySelector(".plot");
plot.focus();
for (const key of ["ArrowRight", "ArrowRight", "PageDown", "ArrowLeft"])
  plot.dispatchEvent(new KeyboardEvent("keydown", { key }));
HTMLAnchorElement.prototype.click = function () {
  Object.assign(document.body.dataset, { file: this.download, picture: this.href });
};
document.querySelector("[data-save]").click();
document.body.dataset.focused = document.activeElement === plot;
document.body.dataset.at = plot.querySelector(".u-legend .u-value").textContent;
</script></body>"""


def test_keys_move_the_cursor_and_a_button_saves_the_picture(reported, browse, tmp_path):
    """After two steps, a page and a step back on a figure its legend shows step 21; the PNG has its curve."""
    page = tmp_path / "used.html"
    page.write_text((reported.report / "index.html").read_text().replace("</body>", USED))
    dom = browse(page.as_uri(), "--blink-settings=preferredColorScheme=1", "--window-size=800,600", "--dump-dom")
    seen = dict(re.findall(r' data-(at|file|focused|picture)="([^"]*)"', dom))
    assert (seen["focused"], seen["at"], seen["file"]) == ("true", "21", "loss.png")
    picture = tmp_path / "loss.png"
    picture.write_bytes(base64.b64decode(seen["picture"].removeprefix("data:image/png;base64,")))
    assert colours(picture)[31, 95, 168] > 100


def test_live(folder, browse):
    """A live page answers on this host alone, follows the metrics, and waits for a run without steps."""
    command = (sys.executable, "-m", "podwright_training", "report", "--run-dir", folder.root, "--live", "--port", "0")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            address = re.match(r"http://127\.0\.0\.1:\d+/", server.stdout.readline())[0]
            assert 'data-drawn="4"' in browse(address, "--dump-dom")
            with folder.metrics.open("a") as metrics:
                metrics.write(json.dumps(train(301)) + "\n")
            with urllib.request.urlopen(address, timeout=500) as answer:  # noqa: S310 - our own server
                assert "<dd>301</dd>" in answer.read().decode()
            folder.metrics.write_text("")
            with pytest.raises(urllib.error.HTTPError, match="503"):
                urllib.request.urlopen(address, timeout=500)  # noqa: S310 - our own server
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(60)
    assert server.returncode == 0


def test_comparison(folder, tmp_path, browse):
    """Runs side by side share their figures, and the options that differ are listed."""
    other = RunFolder(tmp_path / "wider")
    shutil.copytree(folder.root, other.root)
    other.config.write_text(yaml.safe_dump({**yaml.safe_load(folder.config.read_text()), "lr": 1e-3}))
    write([folder.root, other.root], "--output", str(tmp_path / "both"))
    text = text_of(tmp_path / "both" / "index.html")
    assert "Options that differ tiny wider lr 0.002 0.001" in text
    assert 'data-drawn="3"' in browse((tmp_path / "both" / "index.html").as_uri(), "--dump-dom")


@pytest.mark.slow
def test_unfinished_run(tmp_path):
    """A run that is still going on, with nothing but steps, has a report too."""
    run = RunFolder(tmp_path)
    run.metrics.write_text("".join(json.dumps(event) + "\n" for event in [start(0, 1), train(1), train(2)]) + '{"ev')
    write([tmp_path])
    text = text_of(run.report / "index.html")
    assert "Not finished: the last step logged is 2." in text
    assert "Restarts None." in text


@pytest.mark.slow
def test_a_loss_that_is_no_number(folder):
    """A run whose loss became NaN has diverged, and its page still draws what there is."""
    with folder.metrics.open("a") as metrics:
        metrics.write(json.dumps({**train(301), "loss": math.nan, "grad_norm": math.inf}) + "\n")
    write([folder.root])
    page = folder.report / "index.html"
    assert "diverged the loss of 1 steps is not a finite number, the first at step 301" in text_of(page)
    assert "NaN" not in re.search(r'id="report-data">(.*?)</script>', page.read_text(), re.DOTALL)[1]


def test_a_loss_that_never_was_a_number(tmp_path):
    """There is no curve to draw; the line says since when. A folder that is not there is named."""
    with pytest.raises(ReportError, match="no curve: the loss of 2 steps is not a finite number, the first at step 1"):
        history_of(tmp_path, *({**train(step), "loss": math.nan} for step in (1, 2)))
    with pytest.raises(ReportError, match="nowhere does not exist"):
        History.of(RunFolder(tmp_path / "nowhere"))


def test_runs_of_the_same_name_have_different_labels(tmp_path):
    """As much of their paths is shown as differs."""
    for sweep in ("a", "b"):
        (tmp_path / sweep).mkdir()
        make_run(tmp_path / sweep / "run")
    write([tmp_path / "a" / "run", tmp_path / "b" / "run"])
    assert "a/run and b/run" in text_of(tmp_path / "a" / "run" / "report" / "index.html")


@pytest.mark.slow
def test_names_may_have_dollar_signs(tmp_path):
    """A name is a name, and no formula."""
    make_run(tmp_path / "exp$a_$")
    write([tmp_path / "exp$a_$"])
    assert "exp$a_$: loss" in (tmp_path / "exp$a_$" / "report" / "loss.svg").read_text()


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("evaluation.json", b'{"model": "x', "is damaged (Unterminated string"),
        ("samples.txt", b"abc \xff", "not UTF-8: byte 0xff at 4"),
        ("report", b"", "report: File exists"),
    ],
)
def test_what_cannot_be_read_or_written_is_one_line(folder, capsys, name, content, reason):
    """The line names file and reason, and no part of a report is left."""
    (folder.root / name).write_bytes(content)
    assert run([folder.root]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(folder.root / name) in line
    assert reason in line
    assert not list(folder.root.glob("report/*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_full_disk_leaves_no_half_report(folder, tmp_path, capsys):
    """One line says so."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "none", disk], check=True)
    try:
        assert run([folder.root], "--output", str(disk / "report")) == 2
        assert "disk/report: No space left on device" in capsys.readouterr().err
        assert not list((disk / "report").iterdir())
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def test_a_port_that_does_not_exist(folder, capsys):
    """The line says which do."""
    assert run([folder.root], "--live", "--port", "99999") == 2
    assert "port: got 99999, need 0 (any free one) to 65535" in capsys.readouterr().err


def test_long_run_is_thinned_out():
    """Of a long run the page has a thousand points a curve, and no step's loss lies outside the band drawn."""
    lines = [json.dumps({**train(step), "loss": 50.0 if step == 4321 else 3.0}) for step in range(1, 20_001)]
    steps = [event_of(line) for line in lines]
    history = History("long", {}, [], [], steps, [], [], [], [], None)
    table = tables(history)["train"]
    assert len(table["step"]) == 1000
    assert max(table["loss_high"]) == 50
    assert min(table["loss_low"]) == 3


def curve(count, *, floor=2.0, exponent=0.4, noise=0.02, seed=0):
    """Steps and losses of a made-up run that follows a power law."""
    dice = random.Random(seed)  # noqa: S311 - not for cryptography
    steps = list(range(1, count + 1))
    return steps, [floor + 6 * (step + 10) ** -exponent + dice.gauss(0, noise) for step in steps]


def test_verdicts():
    """A falling curve is healthy; a jump, a rise and a standstill are named, with the step."""
    steps, losses = curve(1000)
    assert judge(steps, losses).word == "healthy"
    jumped = [*losses[:700], *(loss + 1 for loss in losses[700:704]), *losses[704:]]
    assert (judge(steps, jumped).word, judge(steps, jumped).spikes) == ("spikes", [701])
    rising = [*losses[:600], *(loss + 0.002 * number for number, loss in enumerate(losses[600:]))]
    assert judge(steps, rising).word == "diverged"
    flat = [*losses[:500], *([losses[499]] * 500)]
    assert judge(steps, flat).word == "plateau"
    assert judge(steps[:10], losses[:10]).word == "too short"
    assert judge(steps, [0.0] * 1000).reason == "the smoothed loss fell 0.0% in the last fifth of the run; no spike"


@given(floor=st.floats(0, 3), exponent=st.floats(0.2, 0.9), seed=st.integers(0, 99))
@settings(max_examples=10)
def test_forecast(floor, exponent, seed):
    """The forecast of a power law, made at half of the run, is within 3 % of where the run ends."""
    steps, losses = curve(2000, floor=floor, exponent=exponent, seed=seed)
    ahead = forecast(steps[:1000], losses[:1000], until=2000)
    assert ahead.steps[-1] == 2000
    assert ahead.low[-1] <= ahead.loss[-1] <= ahead.high[-1]
    truth = floor + 6 * 2010**-exponent
    assert abs(ahead.loss[-1] - truth) < 0.03 * truth + 0.02
    assert forecast(steps, losses, until=2000) is None


@pytest.mark.slow
def test_damaged_lines_are_skipped(folder, caplog):
    """A report reads whatever became of the metrics: each damaged line is a warning."""
    draw = random.Random(0)  # noqa: S311 - not for cryptography
    content = bytearray(folder.metrics.read_bytes())
    for place in draw.choices(range(len(content)), k=200):
        content[place] = draw.randrange(256)
    folder.metrics.write_bytes(content + b'[1]\n{"event": 3}\n{"event": "train"}\n' + b"[" * 10_000 + b"\n")
    write([folder.root])
    assert 100 < len(History.of(folder).train) <= 300
    assert "metrics.jsonl:" in caplog.text
    assert "is damaged; skipped" in caplog.text


@pytest.mark.parametrize("content", ["a: [", "- 1\n", "max_context_width: x\n"])
def test_a_damaged_configuration_is_one_line(folder, content):
    """It names the file."""
    folder.config.write_text(content)
    with pytest.raises(ReportError, match=r"config\.yaml"):
        History.of(folder)


def test_nothing_to_report(tmp_path):
    """A run without a step says where to look."""
    with pytest.raises(ReportError, match=r"has no training step yet.*See .*train\.log"):
        History.of(RunFolder(tmp_path))


@given(values=st.lists(st.floats(-1e3, 1e3), min_size=1), time_constant=st.floats(0.5, 100))
def test_smoothing(values, time_constant):
    """The smoothed curve begins where the curve begins, stays within its range, and of a constant is the constant."""
    smoothed = smooth(values, time_constant)
    assert smoothed[0] == pytest.approx(values[0], abs=1e-9)
    assert all(min(values) - 1e-6 <= value <= max(values) + 1e-6 for value in smoothed)
    assert smooth([2.5] * 5, time_constant) == pytest.approx([2.5] * 5)
