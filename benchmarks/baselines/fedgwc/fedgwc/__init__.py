"""FedGWC for CIFAR-100."""
