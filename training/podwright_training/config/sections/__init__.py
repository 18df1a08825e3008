"""Options of a run, one section per module; ``TrainConfig`` inherits from all of them.

Each section is a dataclass that also checks conflicts between its options. Because of the inheritance, flags and keys
of run.yaml have no sections.
"""
