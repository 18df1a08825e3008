"""A rank that loses another one, and one whose own error has the same form.

Run as a script, this file is a rank of a run: the second one ends without a word.
"""

import os
import re
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from podwright_training.__main__ import main
from podwright_training.errors import LostRanksError
from podwright_training.loop.faults import lost_ranks
from podwright_training.loop.trainer import Trainer

LOST_AFTER = 3  # steps
MESSAGES = {  # of gloo and of NCCL, and what is left of each
    "[/src/gloo/transport/tcp/pair.cc:537] Connection closed by peer [10.0.0.7]:24711": "closed by peer [10.0.0.7])",
    "[/src/gloo/transport/tcp/pair.cc:144] Read error [10.0.0.7]:24711: Connection reset by peer. This is typically "
    "caused by a remote worker hanging": "Read error [10.0.0.7]: Connection reset by peer)",
    "[/src/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 600000ms for recv": "600000ms for recv)",
}


@pytest.mark.slow
def test_a_rank_that_loses_another_says_so_in_a_line(tiny_flags, tmp_path, fork_server):
    """It names the other's address and its own line, has exit status 1, and prints no stack."""
    flags = tiny_flags(tmp_path / "run")
    answer = fork_server(script=__file__, argv=[str(tmp_path), *flags], ranks=2)
    lines = [line for line in answer["output"].splitlines() if "error: " in line]
    assert len(lines) == 1
    assert re.search(r"error: another rank is gone or late \(.*\), while this one was at \S+\.py:\d+; ", lines[0])
    assert "Traceback" not in answer["output"]
    assert (tmp_path / "status-0").read_text() == "1"


@pytest.mark.parametrize("message", MESSAGES)
def test_the_address_of_a_lost_rank_is_left(message):
    """Of a library's message its own file and line, and ports, which are others each time, go."""
    with pytest.raises(LostRanksError, match=r"^another rank is gone or late \(") as raised, lost_ranks():
        _wait(RuntimeError(message))
    assert MESSAGES[message] in str(raised.value)
    assert "gloo" not in str(raised.value)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        RuntimeError("[/src/gloo/allreduce.cc:12] sizes of tensors differ"),
        dist.DistBackendError("NCCL error: unhandled cuda error"),
        ValueError("[/src/gloo/transport/tcp/pair.cc:537] Connection closed by peer"),
    ],
)
def test_other_errors_keep_their_stack(error):
    """They are raised as they are: of another part of gloo or NCCL, or of another kind."""
    with pytest.raises(type(error)) as raised, lost_ranks():
        raise error
    assert raised.value is error


def _wait(error):
    with lost_ranks():  # a line of the trainer is on the stack
        raise error


def _rank(folder, argv):
    step, rank = Trainer.train_step, int(os.environ["RANK"])

    def take_step(trainer):
        if rank == 1 and trainer.progress.step == LOST_AFTER:
            os._exit(1)
        step(trainer)

    Trainer.train_step = take_step
    (folder / f"status-{rank}").write_text(str(main(["train", *argv])))


if __name__ == "__main__":
    _rank(Path(sys.argv[1]), sys.argv[2:])
