"""Filter and de-duplicate a dataset with datatrove, and write it as token shards.

``settings`` (what is removed, and how the work is divided), ``steps`` (our steps of datatrove's pipelines), ``stages``
(the pipelines, and the executors that run them here or on Slurm), ``manifest`` (what was read, removed and written).
"""
