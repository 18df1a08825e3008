"""``python -m podwright_rehearsal.aws``: run the stand-in; the first line printed is its endpoint's URL."""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path

# Read by moto while it is imported.
os.environ["MOTO_IAM_LOAD_MANAGED_POLICIES"] = "true"
os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"  # loading them takes longer than everything else
os.environ["MOTO_DISABLE_GLOBAL_CORS"] = "true"

from podwright_common.garbage import lasting_imports

with lasting_imports():
    from podwright_rehearsal.aws.server import serve


def main() -> None:
    """Run until terminated."""
    parser = argparse.ArgumentParser(prog="python -m podwright_rehearsal.aws", description=__doc__)
    parser.add_argument("--region", default="us-west-2", help="region of tests and rehearsals (default: %(default)s)")
    parser.add_argument("--other-region", action="append", default=[], help="additional region; may be repeated")
    parser.add_argument("--storage", type=Path, help="folder for the files of file systems (default: no files)")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1 (default: a free port)")
    parser.add_argument(
        "--transition-s", type=float, default=1.0, help="seconds that creating, updating, deleting take"
    )
    parser.add_argument("--instant-deletion", action="store_true", help="answer FSx deletions as already done")
    parser.add_argument("--order-seed", type=int, help="read lists in an order of this seed (default: as written)")
    parser.add_argument("--owner-pid", type=int, help="end when this parent process ends")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # our lines say which operation it was
    serve(
        region=arguments.region,
        other_regions=arguments.other_region,
        storage=arguments.storage,
        port=arguments.port,
        transition_s=arguments.transition_s,
        instant_deletion=arguments.instant_deletion,
        order_seed=arguments.order_seed,
        owner_pid=arguments.owner_pid,
    )


if __name__ == "__main__":
    main()
