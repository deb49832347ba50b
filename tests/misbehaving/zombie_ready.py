"""Green for ever, but a request brings no token (sglang#22779)."""

from common import load, say, serve

load()
say("The server is fired up and ready to roll!")
serve(lambda: 200, lambda: False)
