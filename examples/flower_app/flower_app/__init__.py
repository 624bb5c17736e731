"""Digits on ten nodes, in four frameworks: a Flower app whose server trains a model per cluster."""
