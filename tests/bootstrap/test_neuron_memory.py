"""Errors of Neuron devices are found wherever the driver counts them."""

import pytest

from podwright_bootstrap.contract import InstanceFacts
from podwright_bootstrap.health_checks import accelerators

TRN1 = InstanceFacts("neuron", 16, "Trainium")


@pytest.mark.parametrize("place", ["stats/hardware/mem_ecc_uncorrected", "health/mem_ecc_uncorrected/total"])
def test_errors_that_were_not_corrected_are_found(tmp_path, monkeypatch, place):
    """In the driver's folders before and since 2.31, on the device that has them."""
    monkeypatch.setattr(accelerators, "NEURON_SYSFS", tmp_path)
    for number, errors in enumerate((0, 2)):
        counter = tmp_path / f"neuron{number}" / place
        counter.parent.mkdir(parents=True)
        counter.write_text(f"{errors}\n")
    assert list(accelerators.neuron_memory(TRN1)) == ["neuron1 has 2 uncorrected memory errors (mem_ecc_uncorrected)"]
    assert list(accelerators.neuron_memory(InstanceFacts("gpu", 8, "H100"))) == []
