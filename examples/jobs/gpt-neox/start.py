"""Start GPT-NeoX's train.py under torchrun from YAML files, as its deepy.py does under DeepSpeed's launcher."""

import os
import sys
import tempfile
from pathlib import Path

import train
from megatron.neox_arguments import NeoXArgs


def main() -> None:
    """Write the hostfile from which NeoX counts its accelerators, then train."""
    with tempfile.NamedTemporaryFile("w", suffix=".hosts") as hosts:
        slots = os.environ["LOCAL_WORLD_SIZE"]
        hosts.writelines(f"{host} slots={slots}\n" for host in os.environ["HOSTS"].split())
        hosts.flush()
        arguments = NeoXArgs.consume_deepy_args([str(Path(train.__file__)), *sys.argv[1:], "--hostfile", hosts.name])
        words = arguments.get_deepspeed_main_args()
        train.main(input_args=words[words.index("--deepspeed_config") :])


if __name__ == "__main__":
    main()
