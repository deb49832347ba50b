"""Probing: one prompt through a real server, its hidden states captured, described and checked."""
