"""One file per format: bytes to arrays, with every size checked and nothing unpickled."""
