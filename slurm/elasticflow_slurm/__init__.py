"""The SLURM backend of ElasticFlow."""
