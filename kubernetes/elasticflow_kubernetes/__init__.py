"""Runs on Kubernetes: workers and parameter servers are Pods."""
