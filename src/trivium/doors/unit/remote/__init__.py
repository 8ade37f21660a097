"""The bus that units in other processes, or on other hosts, join over ZeroMQ: the original's, of messages and names."""
