"""A newcomer's hour: every command of docs/tutorial.md runs on one rehearsed cluster and prints what the page shows.

After a change, ``pytest tests/rehearsal/test_tutorial.py --update`` writes the page's outputs anew; read ``git diff``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
import transformers

from podwright import checkout
from podwright.check.load import load
from podwright.operations.deployment.terraform import terraform_environment
from podwright_rehearsal.aws import AwsStandIn
from podwright_rehearsal.command import kind_of_hosts
from podwright_rehearsal.run.deployment import Deployment
from podwright_rehearsal.run.hosting import NamespacedHosts
from podwright_rehearsal.run.progress import Progress
from podwright_rehearsal.run.rehearsal import MAX_STEPS, Rehearsal, steps
from podwright_rehearsal.run.supplies import supplies
from podwright_testing import transcript
from podwright_testing.metrics import logged
from podwright_testing.pages import to_run, without_comment
from podwright_testing.provider import running_provider
from podwright_testing.terminal import Terminal
from podwright_testing.transcript import Command, Event
from podwright_training.checkpoint import checkpoint_reader, step_folder, trainer_state
from podwright_training.model import LlamaForCausalLM

pytestmark = [pytest.mark.rehearsal, pytest.mark.hosts, pytest.mark.terraform]
PAGE = checkout.ROOT / "docs" / "tutorial.md"
RUN = "first"
COMMAND_TIMEOUT_S = 900
KEYS = {  # what a command waits for, and the words after which it is pressed
    r"podwright connect": ("", "exit\n"),
    r"podwright status --watch": ("InService", "q"),
}


@dataclass
class Newcomer:
    """Somebody with a terminal of 80 columns, AWS credentials, an ssh key and an empty folder."""

    root: Path
    stack: ExitStack
    aws: AwsStandIn = field(init=False)
    rehearsal: Rehearsal = field(init=False)
    environment: dict[str, str] = field(init=False)
    files: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.folder, home = self.root / "project", self.root / "home"
        for folder in (self.folder, home / ".ssh", self.root / "logs"):
            folder.mkdir(parents=True)
        self.aws = self.stack.enter_context(
            AwsStandIn(directory=self.root / "aws", transition_s=0.1, instant_deletion=True, order_seed=0)
        )
        roots = os.pathsep.join(
            str(checkout.ROOT / name) for name in (".", "common", "constructs", "lifecycle_scripts", "training")
        )
        own = {"HOME": str(home), "NO_COLOR": "1", "PYTHONPATH": roots, "SSH_AUTH_SOCK": str(self.root / "agent")}
        own["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        terraform = terraform_environment(self.root / "terraform")
        self.environment = {**os.environ, **self.aws.environment(), **terraform, **own}
        self.environment.pop("PODWRIGHT_CONFIG", None)
        self._make_key(home / ".ssh" / "id_ed25519")

    def type(self, line: str, *, expected: int = 0, words: str = "", keys: str = "") -> str:
        """Run a command line on the terminal, press keys after these words, and return what it printed."""
        with Terminal(["bash", "-c", line], columns=80, cwd=self.folder, environment=self.environment) as terminal:
            if keys:
                terminal.wait_for(words)
                terminal.type(keys)
            status = terminal.wait(timeout_s=COMMAND_TIMEOUT_S)
            text = terminal.text.replace(self.environment["HOME"], "~")
        assert status == expected, f"$ {line}\n{text}"
        submitted = re.search(r"^job (\d+), run", text, re.MULTILINE)
        if submitted:
            self.rehearsal.job_id = int(submitted[1])
        return text

    def meet(self, event: Event) -> None:
        """Let happen what the page says."""
        verb, _, file = event.name.partition(" ")
        if verb == "write":
            (self.folder / file).write_text(event.text)
        else:
            EVENTS[event.name](self)

    # ---- events ----------------------------------------------------------------------------------------------------

    def boot(self) -> None:
        """Start the deployed cluster's nodes and boot them twice: the second boot changes nothing."""
        config, (kind, _) = self.folder / "cluster.yaml", kind_of_hosts("debian-13")
        self.rehearsal = Rehearsal(
            config,
            load(config),
            supplies(kind.release),
            Progress(list(steps(kind))),
            run_name=RUN,
            kind_of_hosts=kind,
        )
        self.rehearsal.directory = self.root
        self.rehearsal.aws = self.aws
        self.rehearsal.deployment = Deployment(
            config=config,
            settings=self.rehearsal.settings,
            aws=self.aws,
            project=self.folder,
            logs=self.root / "logs",
            on_line=self.rehearsal.progress.note,
        )
        self.rehearsal.start_hosts(self.stack)
        for name in self.rehearsal.hosts.preparation:
            self.rehearsal.prepare(name)
        self.rehearsal.look_at_slurm(self.stack)
        self.environment["PATH"] = f"{self.rehearsal.hosts.cluster.session_plugin()}:{self.environment['PATH']}"
        stack = self.folder / "cdktf.out" / "stacks" / f"{self.rehearsal.settings.name}-cluster"
        self.environment |= self.stack.enter_context(running_provider(stack, self.environment))

    def read_other_pages(self) -> None:
        """Type the commands of other pages that need a cluster, as they stand there."""
        wrong = []
        for block in to_run("cluster"):
            commands = [without_comment(line) for line in block.commands()]
            for line in filter(can_run, commands):
                print(f"=== {block.page}: $ {line}", flush=True)
                words, keys = next((found for pattern, found in KEYS.items() if re.match(pattern, line)), ("", ""))
                expected = block.status if line == commands[-1] else 0
                try:
                    print(self.type(line, expected=expected, words=words, keys=keys), flush=True)
                except AssertionError as error:
                    wrong.append(f"{block.page}: {error}")
        assert wrong == []

    def wait_until_running(self) -> None:
        """Wait until Slurm has started the job."""
        self.rehearsal.hosts.cluster.wait_for_job(self.rehearsal.job_id, frozenset({"RUNNING"}))

    def lose_a_worker(self) -> None:
        """Cut a host's power past a checkpoint; HyperPod's part replaces it, and the job resumes."""
        self.rehearsal.train_until_kill(self.stack)
        self.rehearsal.lose_host(self.stack)

    def compare_the_model(self) -> None:
        """Check every step and the order of the data; the fetched model is the trainer's."""
        self.rehearsal.train_to_end(self.stack)
        self.rehearsal.evaluate(self.stack)
        fetched = self.folder / "runs" / RUN
        theirs = transformers.AutoModelForCausalLM.from_pretrained(fetched / "hf", dtype=torch.float32).eval()
        newest = step_folder.newest(self.rehearsal.run.checkpoints)
        assert newest is not None
        ours = LlamaForCausalLM(trainer_state.model_config(newest)).eval()
        checkpoint_reader.load_weights(ours, newest)
        tokens_BT = torch.randint(0, theirs.config.vocab_size, (2, 64), generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            assert (theirs(tokens_BT).logits - ours(tokens_BT)).abs().max() < 1e-5
        first, second = logged(self.rehearsal.run, "start")
        assert (first["step"], first["world_size"], second["world_size"]) == (0, 4, 4)
        assert 0 < second["step"] < MAX_STEPS
        assert {"report/index.html", "metrics.jsonl", "submission.json"} <= {
            str(path.relative_to(fetched)) for path in fetched.rglob("*")
        }
        record = json.loads((fetched / "submission.json").read_text())
        assert set(record["sha256"]) == {"first.yaml"}

    def end_workers(self) -> None:
        """Stop the workers' hosts, as AWS does when their group shrinks to 0."""
        self.rehearsal.look_back(self.stack)  # a job of its own, after the page has listed the user's
        self.files = self._files_of_the_run(self.rehearsal.hosts.cluster.controller)
        for name in self._workers():
            self.rehearsal.hosts.cluster.kill(name, how="power")

    def boot_new_workers(self) -> None:
        """Boot the group's new instances; what the run left is on the shared file system, byte by byte."""
        hosts = self.rehearsal.hosts
        assert isinstance(hosts, NamespacedHosts)
        instances = {node.hostname: node.instance_id for node in self.rehearsal.deployment.nodes()}
        for name in self._workers():
            assert instances[name] != hosts.cluster.nodes[name].instance_id
            booted = hosts.cluster.replace(name, instance_id=instances[name], lifecycle=hosts.lifecycle)
            assert booted.ok, booted.describe()
            assert self._files_of_the_run(name) == self.files
        hosts.cluster.wait_until_idle()

    def end_hosts(self) -> None:
        """Stop the hosts, as AWS does when the cluster goes."""
        self.rehearsal.hosts.stop()

    def delete_the_log_group(self) -> None:
        """Do what teardown says; then the account is empty."""
        self.rehearsal.hosts.delete_logs()
        assert self.aws.inventory() == []

    def _workers(self) -> list[str]:
        return [node.hostname for node in self.rehearsal.hosts.cluster.nodes.values() if node.role == "compute"]

    def _files_of_the_run(self, hostname: str) -> list[str]:
        """Return hash and path of each of the run's files, as a host sees them."""
        line = f"cd {self.rehearsal.run_on_hosts} && find . -type f -exec sha256sum {{}} + | sort"
        found = self.rehearsal.hosts.cluster.run(line, host=hostname).stdout.splitlines()
        assert any(path.endswith("/metrics.jsonl") for path in found), found
        return found

    def _make_key(self, key: Path) -> None:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        agent = self.stack.enter_context(subprocess.Popen(["ssh-agent", "-D", "-a", self.root / "agent"]))
        self.stack.callback(agent.terminate)
        deadline = time.monotonic() + 600
        while not (self.root / "agent").exists():
            assert time.monotonic() < deadline, "ssh-agent did not start"
            time.sleep(0.05)
        subprocess.run(["ssh-add", "-q", key], env=self.environment, check=True)


def can_run(line: str) -> bool:
    """Return whether this machine has what a line needs beside podwright: jq."""
    return "| jq " not in line or bool(shutil.which("jq"))


EVENTS = {
    "other pages": Newcomer.read_other_pages,
    "the nodes boot": Newcomer.boot,
    "the job runs": Newcomer.wait_until_running,
    "a worker loses its power": Newcomer.lose_a_worker,
    "the model is the trainer's": Newcomer.compare_the_model,
    "the workers go": Newcomer.end_workers,
    "new workers boot": Newcomer.boot_new_workers,
    "the nodes go": Newcomer.end_hosts,
    "the log group goes": Newcomer.delete_the_log_group,
}


def test_the_tutorial(tmp_path: Path, update: bool) -> None:  # noqa: FBT001 — a fixture
    """From init to destroy, only with podwright: each command succeeds and prints what the page shows of it."""
    wrong: list[str] = []
    outputs: dict[int, str] = {}
    with ExitStack() as stack:
        newcomer = Newcomer(tmp_path, stack)
        for part in transcript.read(PAGE):
            print(f"=== {part}", flush=True)  # shown where a part fails
            if isinstance(part, Event):
                newcomer.meet(part)
            else:
                assert isinstance(part, Command)
                outputs[part.line] = newcomer.type(part.text)
                print(outputs[part.line], flush=True)
                wrong += [
                    f"$ {part.text}: not printed: {problem}" for problem in transcript.missing(part, outputs[part.line])
                ]
        if update:
            PAGE.write_text(transcript.rewritten(PAGE, outputs), encoding="utf-8")
        else:
            assert wrong == [], "run it with --update, and read `git diff docs/tutorial.md`"
