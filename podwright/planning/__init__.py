"""Predict the memory, speed, time and cost of a training run. Only the standard library is used."""
