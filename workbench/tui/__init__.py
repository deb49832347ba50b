"""The app: a front end of the same operations that the commands offer. Only this package imports textual."""
