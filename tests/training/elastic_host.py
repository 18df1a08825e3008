"""Be a host of an elastic run, as ``podwright-train join`` is, but fork the fork server: torch is imported here."""

import argparse
import asyncio
import os
import sys

from podwright_training.config import sources
from podwright_training.elastic import agent, fork_server
from podwright_training.elastic.policy import Policy


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
