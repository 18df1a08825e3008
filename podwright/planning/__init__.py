"""Predict the memory, speed, time and cost of a training run. Only the standard library is used.

A plan's inputs are a model's shape (``model.py``), a layout (``layout.py``) and nodes (``cluster_hardware.py``).
``memory.py`` predicts memory. ``kernels.py``, ``blocks.py`` and ``throughput.py``, each using the one before, predict
speed; ``scaling.py`` predicts the loss and ``cost.py`` the cost. ``run_plan.py`` assembles one plan, ``search.py``
compares many, ``plan_text.py`` prints. ``trainer_run.py`` reads a run of podwright-train, ``trainer_options.py`` writes
its options and ``launch.py`` its command.

Data sheets and published shapes are CSV files in ``data/``, each row with its source.
"""
