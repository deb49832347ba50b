"""Where the modes look: each module collects a frozen snapshot. None of them imports textual."""
