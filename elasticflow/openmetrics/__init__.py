"""Figures for Prometheus, of a run and of a service.

``of_run.py`` and ``of_service.py`` say which there are, of what a master or a service tells any client; it is
asked when somebody asks here, and at no other time. A process of its own serves them: see ``exposing.py``.
"""
