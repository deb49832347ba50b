"""Opens its port and answers 503 for ever, while an idle scheduler polls beside it."""

from common import child, event_loop_normal, load, serve

load()
child("sglang::schedul", event_loop_normal)
serve(lambda: 503, lambda: False)
