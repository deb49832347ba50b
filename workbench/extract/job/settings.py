"""What a job is asked to do. Kept in `job.json`, so that `--resume DIR` needs nothing else."""

from pathlib import Path

import msgspec

from workbench.extract.dataset import DatasetSettings
from workbench.extract.record import Format
from workbench.server.specs import DEFAULT_PORT, Capture, Device

GIB = 1 << 30


class ExtractSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One extraction. Paths are absolute. `form`, `max_seq_len` and `model` decide the samples, with `data`."""

    data: str
    out: str
    """The data set's folder; of one that goes to a URL, the folder that stages it."""
    store: str | None = None
    """URL of a data set that does not stay on this machine."""
    staging_bytes: int | None = None
    """Bytes that may wait for their upload; None means half of what is free there, 64 GiB at most."""
    format: Format = "speculators-v1"
    layers: tuple[int, ...] | None = None
    """Blocks; None takes what the server records."""
    shard: tuple[int, int] = (0, 1)
    max_seq_len: int | None = None
    form: str | None = None
    model: str | None = None
    """Folder to serve and whose tokenizer renders the rows; None means the running server's."""
    name: str = "default"
    url: str | None = None
    dump_dir: str | None = None
    device: Device = "auto"
    capture: Capture = "auto"
    allow_chunked: bool = False
    python: str | None = None
    flags: tuple[str, ...] = ()
    """SGLang's, for a server that is started."""
    port: int = DEFAULT_PORT
    """Of a server that is started, unless it is taken."""
    keep: bool = False
    """Leave a server that was started for the job running."""
    concurrency: int = 32
    """Requests that the server has at a time."""
    writers: int | None = None
    """Processes that check and write; None means one a core."""
    high_water_bytes: int | None = None
    """Bytes that may wait in the dump folder; None means half of what is free there, 64 GiB at most."""
    min_free_bytes: int = GIB
    """The job pauses while less than this is free where the data set goes."""
    max_bad: int | None = None
    """Bad samples after which it gives up; None means 1 %, at least 10."""
    redo_bad: bool = False
    """Try quarantined rows again."""
    baseline_s: float = 10.0
    """How long plain prefill is measured before the first sample; 0 leaves it out."""
    timeout_s: float = 900.0
    """For a server's start, and for one request with its dump."""

    @property
    def folder(self) -> Path:
        """Where the data set goes, or is staged."""
        return Path(self.out)

    @property
    def place(self) -> str:
        """What people call the data set by: its URL or its folder."""
        return self.store or self.out

    def dataset(self, model: str | None) -> DatasetSettings:
        """The data set's part, with the tokenizer's folder."""
        return DatasetSettings(path=self.data, model=model, max_seq_len=self.max_seq_len, form=self.form)


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """The machines of a run on Ray. None means what the cluster itself offers."""

    address: str
    """`auto`, or what `ray start` told."""
    servers: int | None = None
    gpus: int | None = None
    """For each server; 0 takes none."""
    shards: int | None = None
    """None means four a server, as far as there are rows."""
    merge: bool = True
    """Make one data set of the shards at the end."""
    lease_s: float = 60.0
    """What runs on a node ends when it has not heard of the driver for so long; only then is its shard given away."""
