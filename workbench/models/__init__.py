"""Models: the small demo model, and what a model folder must hold."""
