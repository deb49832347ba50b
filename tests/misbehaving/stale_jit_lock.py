"""Waits for a lock file whose maker was killed, in torch's own code (flashinfer#972, #2071, sglang#35989)."""

import importlib.util
import os

from common import FOLDER, load

torch = importlib.util.find_spec("torch")
assert torch is not None
assert torch.submodule_search_locations is not None
path = os.path.join(torch.submodule_search_locations[0], "utils", "file_baton.py")
spec = importlib.util.spec_from_file_location("file_baton", path)
assert spec is not None
assert spec.loader is not None
file_baton = importlib.util.module_from_spec(spec)
spec.loader.exec_module(file_baton)
load()
baton = file_baton.FileBaton(os.path.join(FOLDER, "some_kernel", "lock"))
assert not baton.try_acquire()
baton.wait()
