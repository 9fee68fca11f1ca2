"""Many runs share a cluster: the scheduler's policy decides, and the service grants. See docs/service.md."""
