"""Stand in for TorchNeuron: PyTorch's PrivateUse1, named ``neuron``, of ``device.cpp``, and its process groups.

As TorchNeuron, importing it registers the device, its module ``torch.neuron`` and the backend ``neuron``. The library
that ``device.cpp`` becomes is named by the environment.
"""

import os
import types

import torch
import torch.distributed as dist
from torch import cpu

torch.ops.load_library(os.environ["NEURON_STAND_IN"])
OPS = torch.ops.neuron_stand_in
host = OPS.host


def _device_module():
    module = types.ModuleType("torch.neuron")
    index = torch._C._accelerator_getDeviceIndex
    module.is_available = module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module.device_count = lambda: 4  # as device.cpp has
    module.current_device = index
    module.set_device = torch._C._accelerator_setDeviceIndex
    module.synchronize = lambda _device=None: None
    module.manual_seed = module.manual_seed_all = OPS.seed
    module.get_rng_state = lambda _device=None: OPS.rng_state()
    module.set_rng_state = lambda state, _device=None: OPS.set_rng_state(state)
    module.Stream, module.Event, module.stream = Stream, cpu.Event, cpu.stream
    module.current_stream = lambda _device=None: Stream()
    module.memory_allocated = torch.accelerator.memory_allocated
    module.get_amp_supported_dtype = lambda: [torch.bfloat16]
    return module


class Stream(cpu.Stream):
    """Work is done when it is queued."""

    def synchronize(self):
        """Return at once."""


def _on_host(values):
    if isinstance(values, torch.Tensor):
        return host(values)
    return [_on_host(item) for item in values] if isinstance(values, list | tuple) else values


class Group(dist.ProcessGroup):
    """Collectives of either device, by gloo on the memory that both share."""

    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self.gloo = dist.ProcessGroupGloo(store, rank, size, timeout)

    @property
    def group_name(self):
        return dist.distributed_c10d._world.pg_names[self]

    def getBackendName(self):  # noqa: N802 - PyTorch's name
        return "neuron"


def _collective(name):
    def run(self, *values, **named):
        return getattr(self.gloo, name)(*map(_on_host, values), **named)

    return run


for _name in dir(dist.ProcessGroupGloo):
    _calls = _name.startswith(("all", "_all", "broadcast", "reduce", "_reduce", "gather", "scatter", "send", "recv"))
    if _calls or _name in ("barrier", "monitored_barrier"):
        setattr(Group, _name, _collective(_name))
_SINGLE = {"all_gather": "_allgather_base", "reduce_scatter": "_reduce_scatter_base", "all_to_all": "alltoall_base"}
for _name, _of_gloo in _SINGLE.items():  # as process groups name them, and as their backends do
    setattr(Group, f"{_name}_single", _collective(_of_gloo))

torch.utils.rename_privateuse1_backend("neuron")
torch._register_device_module("neuron", _device_module())
torch.utils.generate_methods_for_privateuse1_backend()
dist.Backend.register_backend("neuron", Group, devices=["neuron"])
