"""Clust-PSI-PFL for Fashion-MNIST."""
