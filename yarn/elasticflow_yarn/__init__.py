"""The YARN backend of ElasticFlow."""
