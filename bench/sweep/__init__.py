"""A sweep of server settings (NCCL variables, communicators, flags): plan, starts, gates, statistics, decisions."""
