"""The unit door: StackFlow's small JSON messages over TCP and serial lines."""
