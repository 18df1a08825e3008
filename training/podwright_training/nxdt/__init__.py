"""Train on trn1 with NxD Training, AWS's trainer for PyTorch's legacy XLA path on Neuron.

It is in maintenance: trn1 has no other, as native PyTorch needs Trainium 2 or later.
https://awsdocs-neuron.readthedocs-hosted.com/en/latest/libraries/nxd-training/index.html

``plan.py`` checks a run, ``config.py`` writes its files, ``chain.py`` submits its jobs.
"""
