"""Find capacity to buy: offerings of SageMaker training plans, and extensions of plans."""
