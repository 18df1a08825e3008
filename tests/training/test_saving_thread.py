"""The thread that saves, when a rank hangs."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch

from podwright_training.__main__ import main
from podwright_training.checkpoint import checkpoint_writer
from podwright_training.checkpoint.saving_thread import SavingThread
from podwright_training.errors import UserError
from podwright_training.loop.trainer import Trainer

STEP_TIMEOUT_S = 10  # a busy machine keeps a healthy rank for seconds


@pytest.mark.slow
def test_a_rank_that_hangs_in_a_save_ends_the_job(tmp_path, tiny_flags, fork_server):
    """Training fails after the limit of a step, and waits for the save of the rank that hangs no longer than that."""
    flags = tiny_flags(tmp_path, checkpoint_freq=1, step_timeout_s=STEP_TIMEOUT_S)
    answer = fork_server(script=__file__, argv=["waits", *flags], ranks=2)
    assert answer["status"] == -signal.SIGKILL, answer["output"]  # of the rank that hung
    assert "step 1 " in answer["output"]
    assert "Traceback" not in answer["output"]
    (line,) = [line for line in answer["output"].splitlines() if "error: " in line]
    assert re.search(r"error: the checkpoint in progress is abandoned: rank 1 on \S+ stands still", line)
    assert f"Timed out waiting {STEP_TIMEOUT_S}000ms" in line
    assert (tmp_path / "stacks" / "rank-00000.txt").read_text()


@pytest.mark.slow
def test_a_rank_without_memory_says_so_before_it_abandons_a_save(tmp_path, tiny_flags, fork_server):
    """The line with what to do is there at once; it waits for the save as long as for a step."""
    flags = tiny_flags(tmp_path, checkpoint_freq=1, step_timeout_s=STEP_TIMEOUT_S)
    answer = fork_server(script=__file__, argv=["is exhausted", *flags], ranks=2)
    first, given_up = [line for line in answer["output"].splitlines() if "error: " in line]
    assert re.search(r"error: rank 0 on \S+ is out of memory: .* Lower train_batch_size", first)
    assert re.search(r"checkpoint in progress is abandoned: (another rank|rank 1 on)", given_up)
    assert "Traceback" not in answer["output"]


@pytest.mark.slow
def test_a_rank_that_hangs_in_the_last_save_is_named(tmp_path, tiny_flags, fork_server):
    """All others wait for the save alone; it ends within the limit of a step, not within hours."""
    flags = tiny_flags(tmp_path, max_steps=2, checkpoint_freq=100, step_timeout_s=STEP_TIMEOUT_S)
    answer = fork_server(script=__file__, argv=["waits", *flags], ranks=2)
    (line,) = [line for line in answer["output"].splitlines() if "error: " in line]
    assert re.search(r"error: the checkpoint in progress is abandoned: rank 1 on \S+ stands still", line)
    assert "Traceback" not in answer["output"]


def test_an_error_of_the_user_waits_for_the_save():
    """All ranks are well: the checkpoint is complete, however long it takes."""
    thread, saved = SavingThread("checkpoint", patience_s=0.01), []
    thread.start(lambda: time.sleep(0.3) or saved.append("step 4"))
    thread.end(UserError("the loss is no number"))
    assert saved == ["step 4"]


def hang_in_a_save():
    """Stop this process as it begins to write, and kill it when the first rank has ended."""
    first = os.getpgid(0)
    wait = f"while kill -0 {first} 2>/dev/null; do sleep 0.1; done; kill -KILL {os.getpid()}"
    subprocess.Popen(["sh", "-c", wait])
    os.kill(os.getpid(), signal.SIGSTOP)


if __name__ == "__main__":  # of each rank
    write, take_step = checkpoint_writer.write, Trainer.train_step

    def write_or_hang(*args, **options):
        """Write the checkpoint, or hang."""
        if os.environ["RANK"] == "1":
            hang_in_a_save()
        return write(*args, **options)

    def step_or_end(trainer):
        """Take a step, or need more memory than there is."""
        if sys.argv[1] == "is exhausted" and os.environ["RANK"] == "0" and trainer.progress.step == 1:
            raise torch.OutOfMemoryError("out of memory.")
        take_step(trainer)

    checkpoint_writer.write, Trainer.train_step = write_or_hang, step_or_end
    sys.exit(main(["train", *sys.argv[2:]]))
