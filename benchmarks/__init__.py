"""Speed and memory of private training, side by side with plain training and with peers.

Run `python -m benchmarks.clipping` from the root of the repository.
"""
