"""Everything that changes or enters the engine: the recorder, the codemods, the CPU platform."""
