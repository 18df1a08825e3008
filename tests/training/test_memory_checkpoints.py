"""Checkpoints in memory: real ranks on hosts that share this machine, each with a folder of its own in /dev/shm."""

import os
import shutil
import socket
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest

from podwright_testing.metrics import logged
from podwright_training.__main__ import main
from podwright_training.checkpoint.collective_io import CheckpointError
from podwright_training.checkpoint.memory_folder import MemoryFolder
from podwright_training.checkpoint.memory_server import Address, MemoryClient, MemoryServer
from podwright_training.failures import best_interval_steps
from podwright_training.memory_place import run_id
from podwright_training.ports import own_address
from podwright_training.ranks import Hosts
from podwright_training.report.history import History
from podwright_training.run_folder import RunFolder

STEPS, KILLED_AFTER = 7, 5
OPTIONS = {"max_steps": STEPS, "data_streams": 12, "lr": 1e-3, "min_lr": 1e-3, "warmup": 0}
OPTIONS |= {"global_batch_size": 12, "train_batch_size": 3, "checkpoint_freq": 3, "async_checkpoints": False}
NOBODY = 65534


@pytest.fixture
def memory():
    """A folder in memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="podwright-test-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def undisturbed_losses(tmp_path_factory, tiny_flags, call_ranks):
    folder = tmp_path_factory.mktemp("steady")
    status, output = call_ranks(1, "train", *tiny_flags(folder, **OPTIONS))
    assert status == 0, output
    return losses(folder)


@pytest.fixture(scope="module")
def killed(tmp_path_factory, tiny_flags, call_ranks):
    """Runs that were killed on four hosts, by their options, and what they left in memory."""
    made = {}

    def killed(**layout):
        name = str(layout)
        if name not in made:
            folder = tmp_path_factory.mktemp("killed")
            left = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="podwright-test-"))
            flags = tiny_flags(folder, **OPTIONS, **layout, memory_checkpoint_freq=1, memory_checkpoint_dir=left)
            ending = {"kill_after": ["train", KILLED_AFTER]}
            status, output = call_ranks(4, "train", *flags, ranks_per_host=1, hosts=list("abcd"), **ending)
            assert status == -9, output
            made[name] = folder, left
        return made[name]

    yield killed
    for _, left in made.values():
        shutil.rmtree(left)


@pytest.fixture
def resume(memory, tmp_path, killed, tiny_flags, call_ranks):
    """Resumes such a run on some hosts, without some others' memory; what it printed, and its folder."""

    def resume(hosts, *, lost, layout=None, saved_layout=None):
        run, left = killed(**(saved_layout or {}))
        shutil.copytree(run, tmp_path / "run", dirs_exist_ok=True)
        shutil.copytree(left, memory, dirs_exist_ok=True)
        for host in lost:
            shutil.rmtree(host_folder(memory, host))
        options = {**OPTIONS, **(layout or {}), "memory_checkpoint_freq": 1, "memory_checkpoint_dir": memory}
        flags = tiny_flags(tmp_path / "run", **options)
        status, output = call_ranks(len(hosts), "train", *flags, ranks_per_host=1, hosts=list(hosts))
        assert status == 0, output
        return output, tmp_path / "run"

    return resume


def losses(folder):
    return {event["step"]: event["loss"] for event in logged(RunFolder(folder), "train")}


def last_start(folder):
    return list(logged(RunFolder(folder), "start"))[-1]


def host_folder(memory, host):
    (folder,) = memory.glob(f"podwright-*/{host}")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lost", "hosts", "layouts"),
    [
        ("b", "acd", {}),
        ("d", "abce", {"saved_layout": {"tensor_parallel": 2}, "layout": {"pipeline_parallel": 2}}),
    ],
    ids=["fewer", "replaced"],
)
def test_the_partner_has_what_a_lost_host_had(resume, memory, undisturbed_losses, lost, hosts, layouts):
    """A host and its memory are lost: the run goes on from memory with the losses of an undisturbed one.

    Once with fewer hosts, once with another in its place, from tensor parallelism to a pipeline.
    """
    output, folder = resume(hosts, lost=lost, **layouts)
    start = last_start(folder)
    assert start["resumed_from"].startswith(str(memory)), output
    assert start["step"] >= KILLED_AFTER - 2
    assert losses(folder) == pytest.approx(undisturbed_losses, abs=1e-5)
    assert list(memory.iterdir()) == []
    (interruption,) = History.of(RunFolder(folder)).goodput.interruptions
    assert interruption.lost_s > 0


@pytest.mark.slow
def test_without_host_and_partner_the_run_goes_on_from_disk(resume, undisturbed_losses):
    """Both have lost their memory: one line says which hosts, and the newest checkpoint on disk is loaded."""
    output, folder = resume("abcd", lost="bc")
    (line,) = [line for line in output.splitlines() if "in memory is incomplete" in line][:1]
    assert "of b, are intact neither there nor on the partner" in line
    assert last_start(folder)["resumed_from"] == str(folder / "checkpoints" / "step-00000003")
    assert losses(folder) == pytest.approx(undisturbed_losses, abs=1e-5)


def test_a_full_memory_costs_one_warning(memory, tmp_path, tiny_flags, call_ranks):
    """Training goes on without checkpoints in memory, and leaves nothing there."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", memory], check=True)
    try:
        options = {"memory_checkpoint_freq": 1, "memory_checkpoint_dir": memory, "max_steps": 6}
        status, output = call_ranks(2, "train", *tiny_flags(tmp_path, **options), ranks_per_host=1, hosts=["a", "b"])
    finally:
        subprocess.run(["umount", "--lazy", memory], check=True)
    assert status == 0, output
    assert output.count("WARNING: no checkpoint in memory: ") == 1
    assert "training continues" in output


def test_auto_saves_and_goes_on(memory, tmp_path, tiny_flags, call_ranks):
    """The first step is saved without waiting; the next save comes as late as rare failures and short steps ask for."""
    options = {"memory_checkpoint_freq": "auto", "memory_checkpoint_dir": memory, "max_steps": 12}
    status, output = call_ranks(2, "train", *tiny_flags(tmp_path, **options), ranks_per_host=1, hosts=["a", "b"])
    assert status == 0, output
    saved = [event.get("memory_step") for event in logged(RunFolder(tmp_path), "train")]
    assert saved[-1] in (None, *range(1, 12))
    assert list(memory.iterdir()) == []
    assert best_interval_steps(0.1, 20_000.0, step_s=2.0) == 32  # sqrt(2 x 0.1 x 20,000) s


def test_a_host_without_enough_memory_is_named_before_the_start(memory, tmp_path, tiny_flags, capsys):
    """One line says what is needed, what there is and what to do."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "none", memory], check=True)
    try:
        options = {"memory_checkpoint_freq": 1, "memory_checkpoint_dir": memory}
        assert main(["train", *tiny_flags(tmp_path, ranks=1, **options)]) == 2
    finally:
        subprocess.run(["umount", "--lazy", memory], check=True)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: memory_checkpoint_freq: checkpoints in memory need 0.000833 GB on ")
    assert line.endswith("has room for 0.000102 GB; use more nodes, or set it to none")


@pytest.mark.parametrize("wrong", ["often", 0, -1, 1.5])
def test_a_wrong_frequency_is_one_line(tmp_path, tiny_flags, capsys, wrong):
    """It says what is allowed."""
    assert main(["train", *tiny_flags(tmp_path, ranks=1, memory_checkpoint_freq=wrong)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: memory_checkpoint_freq: got {wrong} (flag), need ")
    assert line.endswith(" or auto")


def test_a_checkpoint_in_memory_is_whole_or_not_used(memory, run_ranks):
    """Whatever file is changed, cut or removed: of one copy the other is read, of both the checkpoint before."""
    run_ranks(Path(__file__).with_name("memory_ranks.py"), memory, ranks=4)


def test_another_user_can_neither_read_nor_plant(memory):
    """The folder is its owner's alone; one that somebody else made first is refused."""
    memory.chmod(0o1777)
    folder = MemoryFolder(memory, run="run", host="a")
    folder.open()
    (folder.root / "secret").write_text("weights")
    if os.geteuid() == 0:
        for attack in (
            ["cat", folder.root / "secret"],
            ["touch", folder.root / "new"],
            ["rm", "-r", folder.root.parent],
        ):
            done = subprocess.run(attack, user=NOBODY, capture_output=True, text=True, check=False)
            assert "Permission denied" in done.stderr or "Operation not permitted" in done.stderr
    (memory / "elsewhere").mkdir(0o700)
    planted = MemoryFolder(memory, run="planted", host="a")
    planted.root.parent.symlink_to(memory / "elsewhere")
    with pytest.raises(CheckpointError, match="is not a folder; remove it"):
        planted.open()
    planted.root.parent.unlink()
    planted.root.parent.mkdir(0o777)
    planted.root.parent.chmod(0o777)
    with pytest.raises(CheckpointError, match="need your own folder of mode 700"):
        planted.open()
    assert list((memory / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_server_answers_only_those_who_know_the_secret(memory, monkeypatch, host):
    """By IPv4 or IPv6, neither a wrong secret nor a name outside gets a byte; a range is exactly that range."""
    (memory / "step-00000001").mkdir()
    (memory / "step-00000001" / "file").write_bytes(bytes(range(100)))
    (memory / "outside").write_text("secret")
    (memory / "step-00000001" / "link").symlink_to(memory / "outside")
    monkeypatch.setenv("MASTER_ADDR", host)
    server = MemoryServer(memory, b"the secret")
    address = Address(own_address(), server.port)
    assert address.host == host
    try:
        with MemoryClient(address, b"the secret") as client:
            assert client.read("step-00000001/file", 10, 5) == bytes(range(10, 15))
            for name in ("outside", "step-00000001/../outside", "/etc/passwd", "step-00000001/..", "step-00000001/x"):
                with pytest.raises(CheckpointError, match="does not have all of"):
                    client.read(name, 0, 1)
            with pytest.raises(CheckpointError, match="does not have all of"):
                client.read("step-00000001/file", 90, 20)
            with pytest.raises(CheckpointError):
                client.read("step-00000001/link", 0, 1)
        with pytest.raises(CheckpointError, match="does not know the secret"):
            MemoryClient(address, b"another")
        with socket.create_connection(address) as eavesdropper:
            eavesdropper.sendall(b"\0" * 64)
            assert len(eavesdropper.recv(1000)) == 32  # a random number, and nothing more
            assert eavesdropper.recv(1000) == b""
    finally:
        server.close()


def test_bytes_that_change_on_their_way_are_refused(memory):
    """The range is read from another host then, or the checkpoint before is used."""
    (memory / "step-00000001").mkdir()
    (memory / "step-00000001" / "file").write_bytes(b"weights")
    server = MemoryServer(memory, b"the secret")
    listener = socket.create_server(("127.0.0.1", 0))

    def pass_on(source, sink):
        while chunk := source.recv(1 << 16):
            sink.sendall(chunk.replace(b"weights", b"weighty"))

    def relay():
        near, far = listener.accept()[0], socket.create_connection(("127.0.0.1", server.port))
        Thread(target=pass_on, args=(near, far), daemon=True).start()
        pass_on(far, near)

    Thread(target=relay, daemon=True).start()
    try:
        with MemoryClient(Address(*listener.getsockname()), b"the secret") as client:
            assert client.read("step-00000001/file", 0, 5) == b"weigh"
            with pytest.raises(CheckpointError, match="sent step-00000001/file, bytes 0 to 7, damaged"):
                client.read("step-00000001/file", 0, 7)
    finally:
        server.close()
        listener.close()


@pytest.mark.parametrize("sent", [b"", b"x" * 5_000_000, b"\0" * 32 + b"\n" * 5_000_000])
def test_garbage_without_end_ends_the_connection_alone(memory, sent):
    """Whatever a stranger sends to the server, it stops reading, and answers the run's hosts as before."""
    (memory / "step-00000001").mkdir()
    (memory / "step-00000001" / "file").write_bytes(b"weights")
    server = MemoryServer(memory, b"the secret")
    try:
        with socket.create_connection(("127.0.0.1", server.port)) as stranger, suppress(ConnectionError):
            stranger.sendall(sent)
            stranger.shutdown(socket.SHUT_WR)
            assert len(b"".join(iter(lambda: stranger.recv(1000), b""))) == 32
        with MemoryClient(Address("127.0.0.1", server.port), b"the secret") as client:
            assert client.read("step-00000001/file", 0, 7) == b"weights"
    finally:
        server.close()


def test_whoever_takes_over_a_connection_asks_for_nothing(memory):
    """A relay that lets both sides prove themselves gets no byte of a file that the client did not ask for."""
    (memory / "step-00000001").mkdir()
    (memory / "step-00000001" / "file").write_bytes(b"weights")
    server = MemoryServer(memory, b"the secret")
    listener = socket.create_server(("127.0.0.1", 0))
    try:
        address = Address(*listener.getsockname())
        asking = Thread(target=lambda: MemoryClient(address, b"the secret").__exit__(None, None, None), daemon=True)
        asking.start()
        near, far = listener.accept()[0], socket.create_connection(("127.0.0.1", server.port))
        with near, far:
            for source, sink, count in ((near, far, 32), (far, near, 32), (near, far, 32), (far, near, 32)):
                sink.sendall(source.recv(count, socket.MSG_WAITALL))
            asking.join()
            request = b'["step-00000001/file", 0, 7]'
            far.sendall(b"%b %b\n" % (b"0" * 64, request))
            assert far.recv(1000) == b""
    finally:
        server.close()
        listener.close()


@pytest.mark.parametrize(
    ("names", "partners"),
    [("aabb", [2, 3, 0, 1]), ("abc", [1, 2, 0]), ("aa", [None, None]), ("aab", [2, 2, 0])],
)
def test_a_partner_is_on_another_host(names, partners):
    """It has the same place on the next host, or the place that there is."""
    hosts = Hosts(list(names), 0)
    assert [hosts.partner_of(rank) for rank in range(len(names))] == partners


def test_a_run_that_begins_anew_finds_no_old_memory(tmp_path):
    """Whoever removes a run's checkpoints also forgets what is in memory of it."""
    first = run_id(tmp_path / "checkpoints")
    assert run_id(tmp_path / "checkpoints") == first
    shutil.rmtree(tmp_path / "checkpoints")
    assert run_id(tmp_path / "checkpoints") != first
