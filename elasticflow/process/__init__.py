"""One process's own affairs: threads, memory, texts, environment, network."""
