"""Its request to itself goes to a proxy that does not answer, so it never gets ready."""

import threading
import time
import urllib.request

from common import PORT, load, serve


def warm_up() -> None:
    while True:
        time.sleep(1)
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/model_info", timeout=5).close()
        except OSError:
            continue
        raise SystemExit("the proxy was not used")


load()
threading.Thread(target=warm_up, daemon=True).start()
serve(lambda: 503, lambda: False)
