"""The batch script fits the nodes it runs on, and Slurm gets it."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser
from dataclasses import asdict, fields
from pathlib import Path
from random import Random

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from podwright.operations.jobs.slurm_jobs import RUN_COMMENT_PREFIX
from podwright.planning import command as plan_command
from podwright.planning.plan_arguments import add_arguments as add_plan_arguments
from podwright_bootstrap import contract
from podwright_testing.metrics import logged
from podwright_testing.mutations import mutated_bytes
from podwright_training import shell_templates
from podwright_training.__main__ import main
from podwright_training.commands import launch
from podwright_training.config.sources import preset_names
from podwright_training.errors import LaunchError
from podwright_training.run_folder import RunFolder
from podwright_training.slurm import batch_script, launch_checks, node_facts
from podwright_training.slurm.batch_script import Elastic, Job, render
from podwright_training.slurm.job_plan import plan
from podwright_training.slurm.node_facts import NodeFacts, read_nodes
from podwright_training.slurm.submission import submit
from podwright_training.spelling import as_item

ENVIRONMENT = Path("/fsx/podwright/environments/abc-def")


def job(**changes):
    """A job of 2 nodes with 2 ranks each, on plain Slurm, without accelerators."""
    values = {"run": RunFolder(Path("/fsx/runs/tiny")), "nodes": 2, "nproc_per_node": 2, "environment": ENVIRONMENT}
    return Job(**{**values, **changes})


def parse(*arguments):
    """The command's flags."""
    parser = ArgumentParser()
    launch.add_arguments(parser)
    return parser.parse_args([*arguments])


def command_of(script):
    """The words of the one srun command, as the shell splits them."""
    line = script[script.index("srun ") : script.index(" &\nstep=")]
    return shlex.split(line.replace("\\\n", " "))


RENDERINGS = {
    "cpu": {},
    "cpu on HyperPod": {"auto_resume": True, "partition": "cpu"},
    "gpu": {"accelerator": "gpu", "gres": "gpu:8", "nproc_per_node": 8},
    "gpu with EFA on HyperPod": {"accelerator": "gpu", "efa": True, "auto_resume": True, "time_limit": "1-00:00:00"},
    "neuron": {"accelerator": "neuron"},
    "elastic": {"elastic": Elastic(min_nodes=2, spares=1), "nodes": 4, "time_limit": "1-00:00:00"},
    "elastic gpu with EFA": {"elastic": Elastic(min_nodes=1), "accelerator": "gpu", "efa": True},
    "neuron with EFA": {"accelerator": "neuron", "efa": True, "trainer_arguments": ("--preset", "it's")},
}


def check_sound(scripts, folder):
    """Let Bash parse every script, and shellcheck find nothing to say."""
    files = [folder / f"{number}.sbatch" for number in range(len(scripts))]
    for file, script in zip(files, scripts, strict=True):
        file.write_text(script)
        subprocess.run(["bash", "-n", file], check=True)
        assert "{" + "{" not in script
    found = subprocess.run(
        [Path(sys.prefix) / "bin" / "shellcheck", *files], check=False, stdout=subprocess.PIPE, text=True
    )
    assert found.stdout == ""


def test_scripts_are_sound(tmp_path):
    """Bash parses every rendering and shellcheck finds nothing to say."""
    check_sound([render(job(**changes)) for changes in RENDERINGS.values()], tmp_path)


def test_jobs_say_whose_run_they_are_of():
    """The comment is what `podwright cancel RUN` and `logs RUN` look for."""
    for changes in RENDERINGS.values():
        assert f"#SBATCH --comment={RUN_COMMENT_PREFIX}tiny\n" in render(job(**changes))


def test_every_preset_has_its_script(tmp_path):
    """A preset's name is all it takes on a cluster: its folder, its flag, the node's accelerators and EFA."""
    nodes = NodeFacts(
        partition="gpus", accelerator="gpu", accelerators_per_node=8, efa_interfaces=32,
        environment=str(ENVIRONMENT), shared_root="/fsx", hyperpod=True,
    )  # fmt: skip
    jobs = {preset: plan(parse("--preset", preset, "--nodes", "4"), nodes) for preset in preset_names()}
    assert {preset: str(each.run.root) for preset, each in jobs.items()} == {
        preset: f"/fsx/runs/{preset}" for preset in preset_names()
    }
    words = {preset: command_of(render(each)) for preset, each in jobs.items()}
    assert all(each[-2:] == ["--preset", preset] for preset, each in words.items())
    assert all("--nproc-per-node=8" in each and "--auto-resume=1" in each for each in words.values())
    check_sound([render(each) for each in jobs.values()], tmp_path)


def test_a_run_needs_a_name():
    """Without a folder and without a preset there is nothing to call it."""
    with pytest.raises(LaunchError, match="--run-dir or --preset is required"):
        plan(parse("--nodes", "1"), NodeFacts(shared_root="/fsx"))


def test_efa_only_where_it_is():
    """EFA's variables are set on nodes with EFA, NCCL's only for GPUs, and on no other node."""
    assert 'export FI_PROVIDER="${FI_PROVIDER-efa}"\n' in render(job(accelerator="gpu", efa=True))
    assert "export NCCL_SOCKET_IFNAME=" in render(job(accelerator="gpu", efa=True))
    assert "FI_" not in render(job(accelerator="gpu"))
    assert "NCCL_" not in render(job(accelerator="neuron", efa=True))


EFA_ON_GPUS = {
    "FI_PROVIDER": "efa",
    "FI_EFA_USE_HUGE_PAGE": "0",
    "FI_EFA_SET_CUDA_SYNC_MEMOPS": "0",
    "NCCL_SOCKET_IFNAME": "^docker,lo,veth",
}
OF_GPUS = {
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_FR_DUMP_TEMP_FILE": "RUN/nccl/rank_",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "RUN/nccl/rank_",
}


@pytest.mark.parametrize(
    ("changes", "exports"),
    [
        ({"accelerator": "gpu", "nproc_per_node": 8}, OF_GPUS),
        ({"accelerator": "gpu", "efa": True}, OF_GPUS | EFA_ON_GPUS),
        (
            {"accelerator": "neuron", "efa": True},
            {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1", "FI_EFA_FORK_SAFE": "1"},
        ),
        ({"accelerator": "neuron"}, {}),
        ({"nproc_per_node": 3}, {"OMP_NUM_THREADS": "4"}),
        ({"nproc_per_node": 96}, {"OMP_NUM_THREADS": "1"}),
    ],
)
def test_a_rank_has_the_variables_of_its_devices(tmp_path, changes, exports):
    """Bash exports them as written, and makes the folder of what NCCL's ranks remember, on a node of 14 cores."""
    found = variables(tmp_path, changes)
    run = tmp_path / "a run"
    wanted = {name: value.replace("RUN", str(run)) for name, value in exports.items()}
    assert {name: value for name, value in found.items() if name not in SHELL} == wanted
    assert (run / "nccl").is_dir() == (changes.get("accelerator") == "gpu")


SHELL = {"PATH", "PWD", "SHLVL", "_"}


def variables(tmp_path, changes, **submitted):
    """Variables that Bash exports before it starts ranks."""
    run, tools = tmp_path / "a run", tmp_path / "bin"
    tools.mkdir(exist_ok=True)
    (tools / "nproc").write_text("#!/bin/sh\necho 14\n")
    (tools / "nproc").chmod(0o755)
    fragment = shell_templates.render(
        Path(batch_script.__file__).with_name("devices.sbatch"), job=job(**changes), run_dir=shlex.quote(str(run))
    )
    script = f"set -euo pipefail\n{fragment}\nenv -0"
    environment = {"PATH": f"{tools}:/usr/bin:/bin", **submitted}
    printed = subprocess.run(["bash", "-c", script], env=environment, check=True, capture_output=True, text=True).stdout
    return dict(line.split("=", 1) for line in printed.split("\0") if line)


@pytest.mark.parametrize("accelerator", ["gpu", "neuron"])
def test_what_a_user_set_for_efa_stays(tmp_path, accelerator):
    """A variable of libfabric or NCCL that a job was submitted with is not replaced, nor is an empty one."""
    changes = {"accelerator": accelerator, "efa": True}
    ours = [name for name in variables(tmp_path, changes) if name.startswith(("FI_", "NCCL_"))]
    theirs = {name: "" if name == "FI_PROVIDER" else "theirs" for name in ours}
    found = variables(tmp_path, changes, **theirs)
    assert len(ours) == {"gpu": 4, "neuron": 3}[accelerator]
    assert theirs.items() <= found.items()


def test_auto_resume_only_on_hyperpod():
    """Srun gets HyperPod's option there only: stock Slurm refuses it."""
    assert "--auto-resume=1" in command_of(render(job(auto_resume=True)))
    assert "auto-resume" not in render(job())


def test_threads_only_without_accelerators():
    """Ranks without accelerators share the node's cores."""
    assert "nproc) / 2))" in render(job())
    assert "OMP_NUM_THREADS" not in render(job(accelerator="gpu"))


@given(arguments=st.lists(st.text(st.characters(exclude_characters="\0\n\r", exclude_categories=["Cs"]), min_size=1)))
def test_trainer_arguments_arrive_verbatim(arguments):
    """Whatever follows -- reaches the trainer as it was typed."""
    words = command_of(render(job(trainer_arguments=tuple(arguments))))
    assert words[words.index("--run-dir=/fsx/runs/tiny") + 1 :] == arguments


def test_no_secret_in_the_script(monkeypatch):
    """A token in the environment is not written into the script."""
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789")
    assert "hf_0123456789" not in render(job())


def record(**changes):
    """A GPU node of HyperPod as the bootstrap records it."""
    values = {
        "cluster_name": "demo", "cluster_arn": "arn:aws:sagemaker:us-west-2:111122223333:cluster/abcdefghij12",
        "hostname": "ip-10-1-0-11", "instance_id": "i-0123456789abcdef0", "instance_group": "gpus", "role": "compute",
        "instance_type": "ml.p5.48xlarge", "partition": "gpus", "accelerator": "gpu", "accelerators_per_node": 8,
        "accelerator_name": "H100", "efa_interfaces": 32, "shared_root": "/fsx", "environment": str(ENVIRONMENT),
        "wheel_sha256": "0" * 64,
    }  # fmt: skip
    return contract.NodeRecord(**{**values, **changes})


@pytest.fixture
def files(tmp_path):
    """Writes what the bootstrap leaves on a node; returns the arguments of ``read_nodes`` behind the partition."""

    def write(node):
        parameters = contract.ProvisioningParameters(
            cluster_name="demo",
            controller_group="head",
            worker_groups=[contract.WorkerGroup("gpus", "gpus"), contract.WorkerGroup("cpus", "prep")],
            instance_facts={
                "gpus": contract.InstanceFacts("gpu", 8, "H100", 32),
                "cpus": contract.InstanceFacts(),
                "head": contract.InstanceFacts(),
            },
        )
        (tmp_path / "node.json").write_text(node.to_json())
        (tmp_path / "provisioning_parameters.json").write_text(json.dumps(parameters.to_dict()))
        return tmp_path / "node.json", tmp_path / "provisioning_parameters.json"

    return write


def test_paths_are_the_contract_s():
    """The two files are read where the bootstrap writes them, and their fields have the contract's names."""
    assert (node_facts.NODE_JSON, node_facts.PROVISIONING_PARAMETERS) == (
        contract.NODE_JSON,
        contract.PROVISIONING_PARAMETERS,
    )
    assert node_facts.API_PARAMETERS == contract.API_PARAMETERS
    read = {"accelerator", "accelerators_per_node", "accelerator_name", "efa_interfaces"}
    for said_by in (contract.InstanceFacts, contract.NodeRecord):
        assert read <= {field.name for field in fields(said_by)}


def test_a_compute_node_speaks_for_itself(files):
    """On a compute node, its own record says what jobs in its partition get."""
    nodes = read_nodes(None, *files(record()))
    assert asdict(nodes) == {
        "partition": "gpus", "accelerator": "gpu", "accelerators_per_node": 8, "accelerator_name": "H100",
        "efa_interfaces": 32, "environment": str(ENVIRONMENT), "shared_root": "/fsx", "hyperpod": True,
    }  # fmt: skip


def test_trainium_has_a_rank_for_each_core_that_programs_see():
    """A trn2.48xlarge has 64; a trn1 is refused, with the way that it has."""
    words = parse("--run-dir", "/fsx/runs/a", "--nodes", "2")
    trn2 = NodeFacts(accelerator="neuron", accelerators_per_node=16, accelerator_name="Trainium2", efa_interfaces=16)
    script = render(plan(words, trn2))
    assert "--nproc-per-node=64 " in script
    assert "export FI_EFA_USE_DEVICE_RDMA=" in script
    with pytest.raises(LaunchError, match=r"needs Trainium2 or Trainium3, and this is Trainium: .* --backend nxdt"):
        plan(words, NodeFacts(accelerator="neuron", accelerators_per_node=16, accelerator_name="Trainium"))


def test_a_login_node_knows_the_compute_nodes(files):
    """On other nodes, the facts are those of the partition's group, not of the node itself."""
    login = record(role="login", partition=None, accelerator="", accelerators_per_node=0, efa_interfaces=0)
    nodes = read_nodes("gpus", *files(login))
    assert (nodes.accelerators_per_node, nodes.efa_interfaces, nodes.partition) == (8, 32, "gpus")
    assert read_nodes("prep", *files(record())).accelerators_per_node == 0


def test_partition_must_be_chosen(files):
    """Without a partition of its own, and with several to choose from, or a wrong one, these are named."""
    login = files(record(role="login", partition=None))
    with pytest.raises(LaunchError, match="--partition is required, one of gpus, prep"):
        read_nodes(None, *login)
    with pytest.raises(LaunchError, match="--partition: got gpu, need one of gpus, prep"):
        read_nodes("gpu", *login)


def test_damaged_files_are_a_line(files):
    """Whatever is in the node's two files, its jobs are planned, or one line says that they are damaged."""
    random, good = Random(0), record(role="login", partition=None)  # noqa: S311 (repeatable accidents)
    paths = files(good)
    contents = [json.loads(path.read_text()) for path in paths]
    refused = []
    for number in range(600):
        for path, content in zip(paths, contents, strict=True):
            path.write_text(json.dumps(content))
        damaged = number % 2
        paths[damaged].write_bytes(mutated_bytes(contents[damaged], random))
        try:
            nodes = read_nodes("gpus", *paths)
            plan(parse("--run-dir", "/fsx/runs/a", "--nodes", "4"), nodes)
        except LaunchError as error:
            refused.append(str(error))
    assert [line for line in refused if len(line.encode().splitlines()) != 1] == []
    assert 100 < len(refused) < 600


def test_plain_slurm(tmp_path):
    """Without the bootstrap's files, nothing is assumed."""
    assert read_nodes(None, tmp_path / "node.json", tmp_path / "parameters.json") == NodeFacts()


def test_defaults_come_from_the_nodes(files):
    """One rank per accelerator, the node's environment, EFA and partition, unless flags say otherwise."""
    nodes = read_nodes(None, *files(record()))
    planned = plan(parse("--run-dir", "/fsx/runs/a", "--nodes", "4", "--", "--preset", "tiny"), nodes)
    assert planned == job(
        run=RunFolder(Path("/fsx/runs/a")), nodes=4, nproc_per_node=8, partition="gpus", accelerator="gpu", efa=True,
        auto_resume=True, trainer_arguments=("--preset", "tiny"),
    )  # fmt: skip
    flags = (
        "--nproc-per-node",
        "2",
        "--accelerator",
        "cpu",
        "--no-efa",
        "--environment",
        "/fsx/e",
        "--time-limit",
        "60",
    )
    changed = plan(parse("--run-dir", "/fsx/runs/a", "--nodes", "4", *flags), nodes)
    assert (changed.nproc_per_node, changed.accelerator, changed.efa) == (2, "", False)
    assert (changed.environment, changed.time_limit) == (Path("/fsx/e"), "60")
    assert not plan(parse("--run-dir", "/fsx/runs/a", "--nodes", "4", "--no-auto-resume"), nodes).auto_resume


def test_a_range_of_nodes_is_an_array_of_hosts():
    """Each node of an elastic run is a job of its own, spares too; none of them keeps a node for a replacement."""
    flags = ("--run-dir", "/fsx/runs/a", "--nproc-per-node", "2", "--nodes", "2-4", "--spares", "1", "--")
    planned = plan(parse(*flags, "--preset=tiny", "--global-batch-size=24"), NodeFacts(hyperpod=True))
    assert (planned.nodes, planned.elastic, planned.auto_resume) == (4, Elastic(min_nodes=2, spares=1), False)
    script = render(planned)
    assert "#SBATCH --array=0-4\n#SBATCH --nodes=1\n" in script
    words = command_of(script)
    assert words[-5:-2] == ["--min-nodes=2", "--max-nodes=4", "--run-dir=/fsx/runs/a"]
    assert "--auto-resume" not in words


@pytest.mark.parametrize(
    ("status", "state", "slurm_says"),
    [
        (75, "RUNNING", "scontrol requeue 12_1"),  # it was asked to leave
        (71, "RUNNING", "sleep 60, scontrol requeue 12_1"),  # its disk or memory is full
        (128 + 9, "RUNNING", "sleep 60, scontrol requeue 12_1"),  # killed as soon as it began
        (128 + 11, "RUNNING", "scontrol requeue 12_1"),
        (128 + 15, "CANCELLED", ""),
        (0, "RUNNING", "scancel --state=PENDING 12"),
        (1, "RUNNING", "sleep 60, scontrol requeue 12_1"),  # it failed by itself
        (127, "RUNNING", "sleep 60, scontrol requeue 12_1"),  # its environment is gone
        (2, "RUNNING", ""),
        (69, "RUNNING", ""),  # the run has failed
    ],
)
def test_a_host_of_a_run_that_goes_on_queues_again(tmp_path, status, state, slurm_says):
    """Also one whose agent was killed, and although the controller does not answer at once; not one of an ended run."""
    (tmp_path / "run" / "elastic").mkdir(parents=True)
    assert ", ".join(end_host(tmp_path, status, state)) == slurm_says


def test_a_host_that_fails_again_and_again_ends(tmp_path):
    """Its fourth failure of a day is the last; other hosts' failures and yesterday's do not count."""
    failures = tmp_path / "run" / "elastic" / "host-failures"
    failures.parent.mkdir(parents=True)
    now = int(time.time())
    failures.write_text(f"12_0 {now}\n" * 9 + f"12_1 {now - 90_000}\n" * 9)
    assert [len(end_host(tmp_path, 1)) for _ in range(4)] == [2, 2, 2, 0]
    *_, line = (tmp_path / "output").read_text().splitlines()
    assert line == (
        "=== host 1 failed 4 times within a day, the last with exit status 1: repair a or its environment, then: "
        "scontrol requeue 12_1"
    )
    shutil.rmtree(failures.parent)
    assert end_host(tmp_path, 1) == [], "the run's folder is gone"


def test_a_host_that_slurm_does_not_queue_again_says_so(tmp_path):
    """The controller refuses for five minutes, or has forgotten the job."""
    for state, said in (("RUNNING", 59), ("", 0)):  # the first time it does not say the state
        (tmp_path / "run" / "elastic").mkdir(parents=True, exist_ok=True)
        requests = end_host(tmp_path, 75, state, scontrol="return 1")
        assert requests == ["scontrol requeue 12_1"] * said
        assert (tmp_path / "output").read_text().splitlines()[-1] == (
            "=== host 1 does not queue again: Slurm refused it for five minutes, as above; when it answers: "
            "scontrol requeue 12_1"
        )


def test_a_rank_that_crashes_in_native_code_shows_its_stack(tmp_path):
    """The log of the job has Python's lines, and the job ends with the rank's status."""
    commands = f"""
        srun() {{ {sys.executable} -c 'import os; os.kill(os.getpid(), {signal.SIGSEGV:d})'; }}
        scontrol() {{ echo a; }}
        squeue() {{ echo RUNNING; }}
    """
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "a", "SLURM_JOB_NUM_NODES": "1"}
    unset = {"PYTHONFAULTHANDLER": ""}  # else the test could not fail where it is set
    done = subprocess.run(
        ["bash", "-c", commands + render(job(run=RunFolder(tmp_path / "run")))],
        env=os.environ | slurm | unset, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 128 + signal.SIGSEGV, done.stderr
    assert 'File "<string>", line 1 in <module>' in done.stderr


@pytest.mark.parametrize("changes", [{}, {"elastic": Elastic(min_nodes=1)}], ids=["fixed", "elastic"])
def test_a_controller_that_does_not_answer_at_a_time_limit_is_asked_again(tmp_path, changes):
    """The step gets its signal at the third try, and the job waits for its end."""
    script = render(job(run=RunFolder(tmp_path / "run"), **changes))
    commands = f"""
        srun() {{ touch {tmp_path}/runs; until [[ -e {tmp_path}/signalled ]]; do command sleep 0.05; done; return 3; }}
        scancel() {{
            echo "$*" >> {tmp_path}/tries
            if (($(wc -l < {tmp_path}/tries) < 3)); then return 1; fi
            touch {tmp_path}/signalled
        }}
        scontrol() {{ echo a; }}
        squeue() {{ echo RUNNING; }}
        sleep() {{ :; }}
        {{ until [[ -e {tmp_path}/runs ]]; do command sleep 0.05; done; kill -USR1 $$; }} &
    """
    slurm = {"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "1", "SLURM_JOB_NODELIST": "a"}
    slurm |= {"SLURM_JOB_NUM_NODES": "1"}
    (tmp_path / "run" / "elastic").mkdir(parents=True)
    done = subprocess.run(
        ["bash", "-c", commands + script], env=os.environ | slurm, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3, done.stderr
    assert (tmp_path / "tries").read_text().splitlines() == [f"--signal=USR1 {'7_1' if changes else '7'}"] * 3


def end_host(folder, status, state="RUNNING", scontrol=":"):
    """End a host's step with a status; return what its script asks of Slurm, and its waits. Write the output."""
    script = render(job(elastic=Elastic(min_nodes=1), run=RunFolder(folder / "run")))
    (folder / "said").write_text("")
    commands = f"""
        srun() {{ return {status}; }}
        squeue() {{
            [[ -e {folder}/asked ]] || {{ touch {folder}/asked; return 1; }}
            [[ $* == *--jobs=12_1* ]] || echo RUNNING # of another host
            echo {state}
        }}
        said() {{ echo "$*" >> {folder}/said; }}
        scontrol() {{ said scontrol "$@"; {scontrol}; }}
        scancel() {{ said scancel "$@"; }}
        sleep() {{ [[ $1 == 5 ]] || said sleep 60; }}
    """
    # SLURM_JOB_ID of an array's last task is the array's.
    slurm = {"SLURM_JOB_ID": "12", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "1", "SLURM_JOB_NODELIST": "a"}
    done = subprocess.run(
        ["bash", "-c", commands + script], env=os.environ | slurm, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stderr
    (folder / "output").write_text(done.stdout)
    return (folder / "said").read_text().splitlines()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--nodes", "4-2"], "--nodes: got 4-2, need the fewest nodes first"),
        (["--nodes", "2", "--spares", "-1"], "--spares: got -1, need 0 or more"),
        (["--nodes", "1-2", "--", "--max_nodes", "8"], "--min-nodes, --max-nodes: leave them out, --nodes 2-4"),
        (["--nodes", "1-2", "--auto-resume"], "--auto-resume: leave it out"),
        (["--nodes", "1-2", "--", "--preset=tiny"], "needs global_batch_size"),
        (
            ["--nodes", "1-2", "--", "--preset=tiny", "--global-batch-size=1"],
            "max_nodes 2 x 1 ranks: global_batch_size 1",
        ),
        (
            ["--nodes=1", "--spares=1", "--", "--preset=tiny", "--global-batch-size=4", "--memory-checkpoint-freq=1"],
            "--spares 1 with memory_checkpoint_freq 1: one node has no partner",
        ),
    ],
)
def test_an_elastic_job_that_cannot_train_is_refused(flags, message):
    """Numbers of nodes that do not work are one line before anything is submitted."""
    with pytest.raises(LaunchError) as caught:
        plan(parse("--run-dir", "/fsx/runs/a", "--nproc-per-node", "1", *flags), NodeFacts())
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_all_problems_are_reported_at_once():
    """Everything wrong with a submission is one error."""
    flags = ("--run-dir", "/home/a b", "--nodes", "0", "--time-limit", "10:00", "--", "--run-dir=/elsewhere")
    with pytest.raises(LaunchError) as caught:
        plan(parse(*flags), NodeFacts(shared_root="/fsx"))
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == [
        "--nodes",
        "--nproc-per-node is required",
        "--run-dir",
        "--run-dir",
        "write --run-dir before --",
        "--time-limit",
    ]


def test_no_run_in_a_folder_that_everybody_may_change(tmp_path):
    """A run's folder is refused where all users may rename it: another could take its place after the check."""
    flags = parse("--nodes=1", "--nproc-per-node=1", f"--run-dir={tmp_path / 'run'}")
    plan(flags, NodeFacts())
    tmp_path.chmod(0o777)
    with pytest.raises(LaunchError, match=rf"--run-dir: all users may rename what is in {tmp_path}; .* chmod \+t"):
        plan(flags, NodeFacts())


@pytest.mark.hosts  # needs root
@pytest.mark.parametrize("planted", ["folder", "link"])
def test_nobody_elses_run_folder(tmp_path, planted):
    """A folder or link that another user made is refused: they could swap the script in it."""
    (tmp_path / "mine").mkdir()
    run = tmp_path / "run"
    if planted == "folder":
        run.mkdir(mode=0o777)
    else:
        run.symlink_to(tmp_path / "mine")
    os.chown(run, 54321, 54321, follow_symlinks=False)
    with pytest.raises(LaunchError, match=r"--run-dir: .*/run belongs to uid 54321, who could change your job's"):
        plan(parse("--run-dir", str(run), "--nodes", "1", "--nproc-per-node", "1"), NodeFacts())
    plan(parse("--run-dir", str(tmp_path / "mine"), "--nodes", "1", "--nproc-per-node", "1"), NodeFacts())


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 5400), ("90:30", 5430), ("2:00:01", 7201), ("1-2", 93600), ("1-2:03", 93780), ("1-0:0:5", 86405), ("x", 0)],
)
def test_time_limits(text, seconds):
    """Slurm's formats of times are understood."""
    assert launch_checks._seconds(text) == seconds


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Provide an sbatch that records its input and answers as configured, and an environment to run."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "torchrun").touch()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")

    def answer(shell):
        (tmp_path / "bin" / "sbatch").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/given\n{shell}\n')
        (tmp_path / "bin" / "sbatch").chmod(0o755)
        return job(run=RunFolder(tmp_path / "runs" / "a"), environment=tmp_path)

    return answer


def test_submission(slurm, tmp_path):
    """The script is in the run folder, sbatch gets it, and the number it answers is the job's."""
    submitted = slurm("echo '17;demo'")
    assert submit(submitted) == 17
    assert (tmp_path / "given").read_text().split() == ["--parsable", str(tmp_path / "runs" / "a" / "train.sbatch")]
    assert submitted.run.sbatch.read_text() == render(submitted)


def test_refusal(slurm):
    """Slurm's error is shown."""
    with pytest.raises(LaunchError, match=r"rejected .*train\.sbatch: invalid partition specified"):
        submit(slurm("echo invalid partition specified >&2; exit 1"))


def test_no_slurm(slurm, monkeypatch):
    """Off the cluster, the message says where to submit."""
    submitted = slurm("exit 0")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LaunchError, match="sbatch not found: submit from a node of the cluster"):
        submit(submitted)


def test_no_environment(slurm, tmp_path):
    """A missing environment is found before the job waits in the queue."""
    slurm("exit 0")
    with pytest.raises(LaunchError, match="no /fsx/podwright/environments/abc-def/bin/torchrun"):
        submit(job(run=RunFolder(tmp_path / "runs" / "a")))


def test_print_writes_nothing(tmp_path, capsys):
    """--print shows the script and leaves no run folder."""
    flags = (
        "--run-dir",
        str(tmp_path / "a"),
        "--nodes",
        "1",
        "--nproc-per-node",
        "2",
        "--print",
        "--",
        "--preset",
        "tiny",
    )
    assert launch.run(parse(*flags)) == 0
    assert capsys.readouterr().out.startswith("#!/bin/bash\n")
    assert list(tmp_path.iterdir()) == []


def test_a_plans_command_runs(tiny_flags, tmp_path, capsys):
    """``podwright plan`` prints a command; submitted to plain Slurm, it trains the tokens that were planned."""
    run = tmp_path / "run.yaml"
    options = dict(as_item(flag) for flag in tiny_flags(tmp_path / "run", ranks=1))
    run.write_text(yaml.safe_dump({**options, "max_steps": 2, "device": "auto"}))
    parser = ArgumentParser()
    add_plan_arguments(parser)
    asked = ["--run", str(run), "--instance", "ml.g5.xlarge", "--micro-batch", "4", "--recompute", "none"]
    assert plan_command.run(parser.parse_args(asked)) == 0
    printed = capsys.readouterr().out.partition("To run it: ")[2].partition("cluster.yaml:")[0]
    program, *words = shlex.split(printed.replace("\\\n", ""))
    assert program == "podwright-train"
    split = words.index("--")
    assert main([*words[:split], "--print", "--nproc-per-node=1", *words[split:]]) == 0
    words = command_of(capsys.readouterr().out)
    assert main([*words[words.index("podwright_training") + 1 :], "--device=cpu"]) == 0
    assert [event["batch_sequences"] for event in logged(RunFolder(tmp_path / "run"), "train")] == [4] * 4
