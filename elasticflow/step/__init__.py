"""What a step is: slices and their order, the arrays and rows that are trained. Pure."""
