"""The product's own processes on a simulated system: see ``world``."""
