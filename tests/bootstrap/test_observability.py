"""Metrics as Prometheus gets them: our collectors behind a real node_exporter, and a real agent that sends them."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from podwright_bootstrap.collectors import __main__ as collectors
from podwright_bootstrap.collectors import efa, gpu, neuron_monitor, slurm_queue, training
from podwright_bootstrap.host import kernel_messages
from podwright_bootstrap.steps.dcgm import COUNTERS
from podwright_bootstrap.steps.observability import HOST_COLLECTORS, SAME_LABELS
from podwright_testing.debians import unpacked

CHECKOUT = Path(__file__).parents[2]
DASHBOARD = CHECKOUT / "docs" / "grafana" / "cluster.json"
METRIC = re.compile(r"\b(?:node|podwright)_\w+\b")
NVIDIA_SMI = """#!/bin/bash
case $1 in
  -L) for gpu in 0 1 2 3; do echo "GPU $gpu: NVIDIA A10G (UUID: GPU-$gpu)"; done ;;
  --query-compute-apps=*) echo "GPU-1, 1"; for pid in $PROGRAMS_OF_JOBS; do echo "GPU-0, $pid"; done ;;
  *throttle*) echo "0, GPU-0, Not Active, Active"; echo "1, GPU-1, [N/A], Not Active" ;;
  *) echo "0, GPU-0, 97, 20480, 23028, 61, 215.33, 1710, 0"; echo "1, GPU-1, 3, 100, 23028, 40, [N/A], 210, [N/A]" ;;
esac
"""
# What real programs printed: Slurm 22.05 (tests/rehearsal asks one, too) and neuron-monitor's user guide.
SLURM = {
    "sinfo": r"printf 'node-5 idle\nnode-5 idle\nnode-6 allocated\nnode-7 down*\n'",
    "squeue": "echo 'gpu RUNNING 2'; echo 'gpu PENDING 4'; echo 'gpu PENDING 1'",
    "sdiag": r"printf 'Server thread count:  3\nAgent queue size:     1\n\tLast cycle:   1500\n\tLast cycle:   9\n'",
}
KMSG = "3,1,5100,-;NVRM: Xid (PCI:0000:10:1c): 79, pid=7, GPU has fallen off the bus.\n6,2,5200,-;other\n"
STEPS = "for job in 42 43; do (exec -a \"slurmstepd: [$job.0]\" bash -c 'sleep 600 & echo $!; wait') & done; wait"
SOUND = {"Collectors that fail", "Uncorrected ECC errors"}  # graphs that are empty while all is well
NEURON_REPORT = {
    "neuron_runtime_data": [
        {
            "pid": 20843,
            "report": {
                "neuroncore_counters": {"neuroncores_in_use": {"0": {"neuroncore_utilization": 92.5}}},
                "memory_used": {"neuron_runtime_used_bytes": {"host": 7, "neuron_device": 4096}},
                "execution_stats": {
                    "period": 1.030613214,
                    "error_summary": {"generic": 0, "numerical": 2, "transient": 0, "runtime": 0, "hardware": 0},
                    "execution_summary": {"completed": 123, "completed_with_num_err": 2, "timed_out": 1},
                    "latency_stats": {
                        "total_latency": None,
                        "device_latency": {"p0": 0.01000001, "p50": 0.01000008, "p99": 0.01000012, "p100": 0.01000013},
                    },
                    "error": "",
                },
            },
        }
    ],
    "system_data": {
        "neuron_hw_counters": {
            "period": 1.030359284,
            "neuron_devices": [
                {"neuron_device_index": 0, "mem_ecc_corrected": 4, "mem_ecc_uncorrected": 0, "sram_ecc_uncorrected": 1}
            ],
            "error": "",
        }
    },
}


@pytest.fixture(scope="session")
def debians() -> Path:
    """Debian's node_exporter and Prometheus, unpacked once."""
    return unpacked("prometheus", ("prometheus-node-exporter", "prometheus")) / "usr" / "bin"


@pytest.fixture
def programs_of_jobs() -> Iterator[list[str]]:
    """Two processes whose parents have the names that Slurm gives to those of steps: two jobs share a GPU."""
    with subprocess.Popen(("bash", "-c", STEPS), stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        yield [process.stdout.readline().strip() for _ in range(2)]
        os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs_of_jobs: list[str]) -> Path:
    """The folder of text files, after every collector has run on a machine that has everything."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monitor = f"echo '{json.dumps(NEURON_REPORT)}'; exec sleep 60"
    monkeypatch.setenv("PROGRAMS_OF_JOBS", " ".join(programs_of_jobs))
    for name, script in {**SLURM, "neuron-monitor": monitor}.items():
        write_program(programs / name, f"#!/bin/bash\n{script}\n")
    write_program(programs / "nvidia-smi", NVIDIA_SMI)
    counters = tmp_path / "infiniband" / "rdmap16s27" / "ports" / "1" / "hw_counters"
    counters.mkdir(parents=True)
    for number, name in enumerate(("rx_bytes", "tx_bytes", "rx_drops", "rdma_read_bytes", "retrans_pkts", "lifespan")):
        (counters / name).write_text(f"{number + 10}\n")
    run = tmp_path / "runs" / "llama"
    run.mkdir(parents=True)
    steps = [{"event": "train", "step": step, "loss": 2.5, "tokens_per_s": 48000.0, "mfu": 0.41} for step in (1, 2)]
    lines = [json.dumps(step) for step in [*steps, {"event": "validation", "step": 2, "loss": 2.6}]]
    (run / "metrics.jsonl").write_text("\n".join(lines) + '\n{"event": "trai')
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    (tmp_path / "kmsg").write_text(KMSG)
    monkeypatch.setattr(kernel_messages, "KMSG", tmp_path / "kmsg")
    monkeypatch.setattr(gpu, "STEPS_USER", os.getuid())
    monkeypatch.setattr(slurm_queue, "BIN", str(programs))
    monkeypatch.setattr(neuron_monitor, "MONITOR", ("neuron-monitor",))
    monkeypatch.setattr(efa, "DEVICES", tmp_path / "infiniband")
    monkeypatch.setattr(training, "RUNS", tmp_path / "runs")
    output = tmp_path / "textfile"
    output.mkdir()
    collectors.measure(list(collectors.COLLECTORS), output)
    return output


def free_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


@contextmanager
def running(command: list[object]) -> Iterator[None]:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()


@pytest.fixture
def exporter(measured: Path, debians: Path) -> Iterator[str]:
    """The address of a real node_exporter, which gives the metrics of the collectors that nodes use."""
    address = free_address()
    command = [debians / "prometheus-node-exporter", f"--web.listen-address={address}"]
    command += ["--collector.disable-defaults", *(f"--collector.{name}" for name in HOST_COLLECTORS)]
    command += [f"--collector.textfile.directory={measured}"]
    with running(command):
        yield address


@pytest.fixture
def exported(exporter: str) -> str:
    """The text that Prometheus gets of a node."""
    return get(f"http://{exporter}/metrics")


@pytest.fixture
def query(exporter: str, debians: Path, tmp_path: Path) -> Iterator[Callable[[str], list[dict]]]:
    """Ask a real Prometheus that scrapes a node as a node's agent does; a stand-in gives DCGM's fields."""
    (tmp_path / "dcgm.csv").write_text(COUNTERS)
    gpus, own = free_address(), free_address()
    labels = {"cluster": "demo", "instance": "n1", "instance_group": "workers"}

    def job(name: str, address: str, relabel: list[dict[str, object]]) -> dict[str, object]:
        targets = [{"targets": [address], "labels": labels}]
        return {"job_name": name, "static_configs": targets, "metric_relabel_configs": relabel}

    config = {"global": {"scrape_interval": "1s"}}
    config["scrape_configs"] = [job("node", exporter, []), job("dcgm", gpus, SAME_LABELS)]
    (tmp_path / "prometheus.json").write_text(json.dumps(config))
    stand_in = [Path(__file__).parent / "shims" / "serve_dcgm", "--address", gpus, "--collect-interval", "30000"]
    stand_in += ["--collectors", tmp_path / "dcgm.csv", "--hpc-job-mapping-dir", tmp_path]
    prometheus = [debians / "prometheus", f"--config.file={tmp_path / 'prometheus.json'}"]
    prometheus += [f"--storage.tsdb.path={tmp_path / 'tsdb'}", f"--web.listen-address={own}"]
    with running(stand_in), running(prometheus):

        def ask(expression: str) -> list[dict]:
            words = urllib.parse.urlencode({"query": expression})
            return json.loads(get(f"http://{own}/api/v1/query?{words}"))["data"]["result"]

        end = time.monotonic() + 600
        while not ask("rate(node_cpu_seconds_total[1m]) and on () DCGM_FI_DEV_MEMORY_TEMP"):
            assert time.monotonic() < end, "Prometheus scrapes nothing"
            time.sleep(0.2)
        yield ask


def graphs() -> list[dict]:
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def get(url: str) -> str:
    """The answer, as soon as there is one."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + 600
    while True:
        try:
            return opener.open(url, timeout=600).read().decode()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@pytest.mark.slow
def test_every_graph_draws_what_a_real_prometheus_has_of_a_node(query, exported):
    """Prometheus takes each expression of the dashboard and answers it with values; no alert asks for a wrong name.

    Two jobs on one GPU are two curves.
    """
    drawn = {}
    for panel in graphs():
        for target in panel["targets"]:
            expression = target["expr"].replace("$cluster", "demo").replace("$__rate_interval", "1m")
            drawn[panel["title"], target["refId"]] = query(expression)
    assert len(drawn) > 40
    assert {title for (title, _), result in drawn.items() if not result} == SOUND
    assert {row["metric"]["slurm_job"] for row in drawn["Power of GPUs by job", "A"]} == {"42", "43"}
    assert {row["metric"]["slurm_job"] for row in drawn["Tensor cores at work by job", "A"]} == {"42", "43"}
    assert [row["value"][1] for row in drawn["Latency of executions", "B"]] == ["0.01000012"]
    failed = {row["metric"]["kind"]: row["value"][1] for row in drawn["Executions that fail", "A"]}
    assert {kind for kind, count in failed.items() if count != "0"} == {"numerical", "timed_out"}
    given = {line.split("{")[0].split()[0] for line in exported.splitlines() if line and line[0] != "#"}
    rules = yaml.safe_load(DASHBOARD.with_name("alerts.yaml").read_text())["groups"][0]["rules"]
    assert {name for rule in rules for name in METRIC.findall(rule["expr"])} - given == set()


def test_collectors_report_what_programs_report(exported):
    """Values in base units, each GPU, core, interface and state apart, a field that lacks left out."""
    lines = set(exported.splitlines())
    assert {
        'podwright_gpu_utilization_ratio{gpu="0",uuid="GPU-0"} 0.97',
        'podwright_gpu_memory_used_bytes{gpu="0",uuid="GPU-0"} 2.147483648e+10',
        'podwright_gpu_power_watts{gpu="0",uuid="GPU-0"} 215.33',
        f'podwright_gpu_job{{slurm_job="42",user="{pwd.getpwuid(os.getuid()).pw_name}",uuid="GPU-0"}} 1',
        'podwright_gpu_throttled{gpu="0",reason="hardware",uuid="GPU-0"} 0',
        'podwright_gpu_throttled{gpu="0",reason="temperature",uuid="GPU-0"} 1',
        'podwright_gpu_xid_errors_total{bus="0000:10:1c",xid="79"} 1',
        'podwright_neuroncore_utilization_ratio{core="0",pid="20843"} 0.925',
        'podwright_neuron_execution_errors{kind="numerical",pid="20843"} 2',
        'podwright_neuron_execution_errors{kind="timed_out",pid="20843"} 1',
        'podwright_neuron_execution_latency_seconds{pid="20843",quantile="0.99",where="device"} 0.01000012',
        'podwright_neuron_ecc_events{device="0",kind="corrected",memory="dram"} 4',
        'podwright_neuron_ecc_events{device="0",kind="uncorrected",memory="sram"} 1',
        'podwright_efa_tx_bytes_total{device="rdmap16s27",port="1"} 11',
        'podwright_efa_retrans_pkts_total{device="rdmap16s27",port="1"} 14',
        'podwright_slurm_nodes{state="idle"} 1',
        'podwright_slurm_nodes{state="down"} 1',
        'podwright_slurm_jobs{partition="gpu",state="pending"} 2',
        'podwright_slurm_job_nodes{partition="gpu",state="pending"} 5',
        "podwright_slurm_schedule_cycle_seconds 0.0015",
        'podwright_training_tokens_per_second{run="llama"} 48000',
        'podwright_training_step{run="llama"} 2',
        'podwright_training_running{run="llama"} 1',
        'podwright_collector_works{collector="slurm"} 1',
    } <= lines
    assert not any(line.startswith('podwright_gpu_power_watts{gpu="1"') for line in lines)
    assert 'where="total"' not in exported  # no value there: nothing was measured
    assert 'uuid="GPU-1"} 1\n' not in exported  # a program of no job, and a reason that the GPU does not name
    assert "lifespan" not in exported
    assert "node_textfile_scrape_error 0" in lines


def test_no_name_of_a_program_makes_it_a_step_of_another_job(programs_of_jobs, monkeypatch):
    """A parent with the name of a step's is one only where it is root's."""
    for owner, found in ((os.getuid(), ["42", "43"]), (os.getuid() + 1, [])):
        monkeypatch.setattr(gpu, "STEPS_USER", owner)
        jobs = [gpu.job_of(int(pid)) for pid in programs_of_jobs]
        assert sorted(job[0] for job in jobs if job) == found


def test_a_run_that_has_ended_does_not_run(tmp_path, monkeypatch):
    """The run's own last word counts: its end, or the start after it."""
    events = {"ended": ["start", "train", "end"], "resumed": ["start", "train", "end", "start"], "young": ["start"]}
    for name, kinds in events.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text("".join(f'{{"event": "{kind}", "step": 3}}\n' for kind in kinds))
    monkeypatch.setattr(training, "RUNS", tmp_path)
    running = next(family for family in training.collect() if family.name == "podwright_training_running")
    assert running.samples == {'{run="ended"}': 0, '{run="resumed"}': 1, '{run="young"}': 1}


def test_a_number_that_no_double_holds_is_left_out(tmp_path, monkeypatch):
    """A run that writes numbers of 400 or 9,000 digits takes nothing from its other values, nor from other runs."""
    for name, digits in (("large", 400), ("endless", 9000), ("sound", 1)):
        (tmp_path / name).mkdir()
        event = f'{{"event": "train", "step": {"9" * digits}, "loss": 2.5}}\n'
        (tmp_path / name / "metrics.jsonl").write_text(event)
    monkeypatch.setattr(training, "RUNS", tmp_path)
    families = {family.name: family.samples for family in training.collect()}
    assert families["podwright_training_step"] == {'{run="sound"}': 9}
    assert families["podwright_training_loss"] == {'{run="large"}': 2.5, '{run="sound"}': 2.5}


def test_alerts_fire_when_they_should(debians, tmp_path):
    """Prometheus's own tool reads the rules, and each fires for what it is about and for nothing else."""
    rules = DASHBOARD.with_name("alerts.yaml")
    shutil.copy2(rules, tmp_path)
    shutil.copy2(Path(__file__).with_name("alerts.yaml"), tmp_path / "tests.yaml")
    named = {rule["alert"] for rule in yaml.safe_load(rules.read_text())["groups"][0]["rules"]}
    assert named == set(re.findall(r'alertname="(\w+)"', (tmp_path / "tests.yaml").read_text()))
    done = subprocess.run(
        [debians / "promtool", "test", "rules", "tests.yaml"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_metric_of_neuron_devices_has_a_graph(exported):
    """All that neuron-monitor reports is drawn, and so all that alerts watch."""
    given = {name for name in METRIC.findall(exported) if name.startswith("podwright_neuron")}
    drawn = {name for panel in graphs() for target in panel["targets"] for name in METRIC.findall(target["expr"])}
    assert given
    assert given <= drawn


def test_every_panel_says_what_it_shows():
    """Each graph of the dashboard has a description and a unit; its place overlaps no other."""
    panels = graphs()
    assert all(panel["description"] and panel["fieldConfig"]["defaults"]["unit"] for panel in panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)


def test_a_collector_that_fails_says_so_and_leaves_the_others_alone(measured, monkeypatch, capsys):
    """Its old values go, its flag is 0, and the log has the reason."""
    write_program(measured.parent / "programs" / "squeue", "#!/bin/bash\nexit 1\n")
    monkeypatch.setattr(training, "RUNS", measured.parent / "nowhere")
    collectors.measure(["slurm", "efa"], measured)
    text = (measured / "podwright.prom").read_text()
    assert 'podwright_collector_works{collector="slurm"} 0' in text
    assert "podwright_slurm" not in text
    assert "podwright_efa_rx_bytes_total" in text
    assert "slurm: " in capsys.readouterr().out


@pytest.mark.hosts  # needs root
def test_a_user_with_many_runs_hides_nobody_elses(tmp_path, monkeypatch):
    """Of more runs than are looked at each user has the newest, however many another one has."""
    monkeypatch.setattr(training, "RUNS", tmp_path)
    monkeypatch.setattr(training, "MOST_RUNS", 3)
    for number, name in enumerate(("mine", "fake-0", "fake-1", "fake-2", "fake-3")):
        path = tmp_path / name / training.METRICS_NAME
        path.parent.mkdir()
        path.write_text('{"event": "train", "step": 1}\n')
        os.utime(path, (time.time() - 60 + number,) * 2)
        os.chown(path.parent, 0 if name == "mine" else 54321, 0)
    steps = next(family for family in training.collect() if family.name == "podwright_training_step")
    assert set(steps.samples) == {f'{{run="{name}"}}' for name in ("mine", "fake-3", "fake-2")}


def test_runs_that_users_broke_take_nothing_from_the_others(tmp_path, monkeypatch):
    """Beside pipes, links, names and numbers that are none, the run that works is measured; each is counted."""
    runs, output = tmp_path / "runs", tmp_path / "output"
    output.mkdir()
    step = {"event": "train", "loss": 2.5, "step": 7}
    for name in (b"good", b"pipe", b"link", b"huge", b"deep", b"\xff", b"\xfe", b"list", b"endless"):
        folder = runs / os.fsdecode(name)
        folder.mkdir(parents=True)
        if name not in {b"pipe", b"link"}:
            (folder / "metrics.jsonl").write_text(json.dumps(step) + "\n")
    os.mkfifo(runs / "pipe/metrics.jsonl")
    (runs / "link/metrics.jsonl").symlink_to("/dev/zero")
    (runs / "file").touch()
    (runs / "huge/metrics.jsonl").write_text('{"event": "train", "loss": 1%s}\n' % ("0" * 400))
    (runs / "deep/metrics.jsonl").write_text("[" * 60_000 + "\n")
    (runs / "list/metrics.jsonl").write_text('[1]\n"x"\n')
    with (runs / "endless/metrics.jsonl").open("r+b") as file:
        file.truncate(1 << 40)
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + json.dumps({**step, "step": 9}).encode() + b"\n")
    monkeypatch.setattr(training, "RUNS", runs)

    collectors.measure(["training"], output)

    lines = (output / "podwright.prom").read_text().splitlines()
    assert 'podwright_collector_works{collector="training"} 1' in lines
    assert 'podwright_training_loss{run="good"} 2.5' in lines
    assert 'podwright_training_step{run="endless"} 9' in lines
    assert 'podwright_training_loss{run="huge"}' not in "".join(lines)
    assert len([line for line in lines if line.startswith('podwright_training_loss{run="\ufffd"}')]) == 1
    assert "podwright_training_unreadable_runs 3" in lines  # pipe, link, deep


@pytest.mark.hosts
def test_a_node_measures_itself_and_sends_it_to_the_workspace(make_host, cloud, debians):
    """Real programs run from the units, the workspace gets what they measure, a second boot changes nothing."""
    cloud.contract["podwright"]["nodes"] = {"observability": {"interval_s": 5}}
    cloud.contract["podwright"]["prometheus_remote_write_url"] = (
        "http://127.0.0.1:9999/workspaces/ws-1/api/v1/remote_write"
    )
    host = make_host(patience=1)
    shutil.copy2(debians / "prometheus-node-exporter", host.shims / "node_exporter")
    # Prometheus 2 has its agent behind a flag of another name. Debian's build of it signs nothing, whatever sigv4 says.
    agent = f'#!/bin/bash\nexec {debians}/prometheus --enable-feature=agent "${{@/--agent/--log.level=info}}"\n'
    write_program(host.shims / "prometheus", agent)
    write_program(host.shims / "nvidia-smi", NVIDIA_SMI)
    write_program(host.shims / "workspace", WORKSPACE)
    boot = host.boot(
        "export AWS_ACCESS_KEY_ID=testing AWS_SECRET_ACCESS_KEY=testing\n"  # without any, the agent does not start
        "mkdir /mnt/fsx && mount -t lustre fs@tcp:/abcdefgh /mnt/fsx && mkdir /mnt/fsx/podwright\n"
        "serve_releases && { workspace & }\n"
        "./on_create.sh --only observability && ./on_create.sh --only observability || exit 1\n"
        "curl -s --noproxy '*' http://10.1.0.5:9100/metrics >/opt/metrics\n"
        "for _ in $(seq 600); do [[ -e /opt/received ]] && break; sleep 0.2; done\n"
    )
    assert boot.exit_code == 0, boot.output
    assert boot.summaries[-1].startswith("1 steps, 0 changes")
    metrics = host.read("opt/metrics")
    assert "node_load1 " in metrics
    assert 'podwright_gpu_utilization_ratio{gpu="0",uuid="GPU-0"} 0.97' in metrics
    assert host.read("opt/received").splitlines() == ["/workspaces/ws-1/api/v1/remote_write", "snappy", "0.1.0"]


WORKSPACE = """#!/bin/bash
exec python3 - <<'PYTHON'
import http.server, os, pathlib
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        lines = [self.path, self.headers["Content-Encoding"], self.headers["X-Prometheus-Remote-Write-Version"]]
        pathlib.Path("/opt/received.new").write_text("\\n".join(lines))
        os.replace("/opt/received.new", "/opt/received")
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", 9999), Handler).serve_forever()
PYTHON
"""


@pytest.mark.parametrize("printed", ["half a line", ""])
def test_a_monitor_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str) -> None:
    """neuron-monitor that stops in the middle of its report ends with the time limit."""
    write_program(tmp_path / "neuron-monitor", f"#!/bin/bash\nprintf '{printed}'\nexec sleep 3600\n")
    monkeypatch.setattr(neuron_monitor, "MONITOR", (str(tmp_path / "neuron-monitor"),))
    monkeypatch.setattr(neuron_monitor, "COMMAND_LIMIT_S", 0.5)
    with pytest.raises(subprocess.TimeoutExpired):
        neuron_monitor.collect()
