"""Be a host of an elastic run, as ``podwright-train join`` is, but fork the fork server: torch is imported here.

Ranks take some steps of a generation and wait there, until they are asked to save and end, or the test lets the run go:
a run of milliseconds would be over before a busy machine lets the test do anything to it. Where the run's folder has
a file ``broken-host-N``, a rank of that host ends instead of taking a step.
"""

import argparse
import asyncio
import os
import sys
import time

from podwright_training.config import sources
from podwright_training.elastic import agent, fork_server
from podwright_training.elastic.policy import Policy
from podwright_training.loop.trainer import Trainer

FREE_STEPS = 3  # of each generation


class Forked:
    """The process of a fork server."""

    def __init__(self, channel):
        self._pid = os.fork()
        if self._pid == 0:
            os.closerange(3, channel.fileno())
            os.closerange(channel.fileno() + 1, 256)
            try:
                fork_server.serve(channel)
            finally:
                os._exit(0)

    def kill(self):
        """As ``Popen``'s."""
        os.kill(self._pid, 9)

    def wait(self):
        """As ``Popen``'s."""
        os.waitpid(self._pid, 0)


def take_step_when_let(self, take_step=Trainer.train_step):
    """Wait before a step, if need be."""
    self.taken = getattr(self, "taken", 0) + 1
    root, requests = self.run.folder.root, self.run.stop_requests.signals
    broken = root / f"broken-{os.environ['SLURMD_NODENAME']}"
    while not broken.exists() and self.taken > FREE_STEPS and not requests and not (root / "go").exists():
        time.sleep(0.02)
    if broken.exists():
        os._exit(1)
    take_step(self)


Trainer.train_step = take_step_when_let
for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
    del os.environ[name]
parser = argparse.ArgumentParser()
parser.add_argument("--member", type=int)
parser.add_argument("--ranks", type=int)
sources.add_arguments(parser)
args = parser.parse_args()
options = sources.load(args)
policy = Policy.of(options, ranks_per_node=args.ranks)
address = f"127.0.0.{args.member + 2}"
os.environ["SLURMD_NODENAME"] = f"host-{args.member}"
host = agent.Agent(options, policy, number=args.member, address=address, spawn=Forked)
status = asyncio.run(host.run())
sys.stdout.flush()
os._exit(status)
