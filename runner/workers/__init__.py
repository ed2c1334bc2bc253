"""Who executes a swarm, one file a kind."""
