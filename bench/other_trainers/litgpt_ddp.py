"""Start litgpt 0.5 with DDP where it takes FSDP, which Lightning refuses on CPUs."""

import litgpt.pretrain
from lightning.fabric.strategies import DDPStrategy
from litgpt.__main__ import main


class Replicated:
    """Make a DDPStrategy of the arguments of a FSDPStrategy; litgpt asks whether a strategy is of this class."""

    def __new__(cls, **_of_fsdp: object) -> DDPStrategy:  # type: ignore[misc]
        """Return the strategy."""
        return DDPStrategy()


if __name__ == "__main__":  # not in the processes that tokenise
    litgpt.pretrain.FSDPStrategy = Replicated
    main()
