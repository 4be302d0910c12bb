"""The engine beside other model servers, on one machine, in one run: `python -m benchmarks.engine.peers --help`."""
