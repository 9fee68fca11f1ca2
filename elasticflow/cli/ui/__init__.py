"""``elasticflow ui``: runs in a browser, while they go on and when they are over."""
