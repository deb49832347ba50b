"""Load on a server, and what it answered: the streaming client, its records, metrics and run folders."""
