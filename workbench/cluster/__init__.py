"""One extraction on many machines: a driver hands out shards, hands on the nodes do them, each with its server."""
