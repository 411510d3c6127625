"""The local stack: what stands behind Keyscale, as real processes on 127.0.0.1. The scripts beside this file start it."""
