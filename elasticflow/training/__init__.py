"""What a program names of how it is trained, besides an optimizer: groups, learning rates, metrics."""
