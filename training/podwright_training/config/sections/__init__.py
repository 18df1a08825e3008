"""Options of a run, one section per module; ``TrainConfig`` inherits from all of them."""
