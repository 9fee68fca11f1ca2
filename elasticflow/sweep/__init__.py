"""Sweeps: many runs of one program, each with other values, chosen by what those before have shown."""
