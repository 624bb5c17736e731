"""Digits on ten nodes, in three frameworks: a Flower app whose server trains a model per cluster."""
