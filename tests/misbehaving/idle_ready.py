"""Ready and idle: a scheduler polls at a whole core (sglang#1315)."""

from common import child, event_loop_normal, load, say, serve

load()
child("sglang::schedul", event_loop_normal)
say("The server is fired up and ready to roll!")
serve(lambda: 200, lambda: True)
