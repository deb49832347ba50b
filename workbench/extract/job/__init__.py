"""The extraction job: from a data set and a server to a finished folder, whatever happens on the way."""
