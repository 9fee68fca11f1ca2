"""What every cluster needs, once; and how a run and its members find one another there."""
