"""Commands that run on their own: started by the app, detached from birth, found again by whoever looks."""
