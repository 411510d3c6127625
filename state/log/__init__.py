"""The commit log of a job, the meaning of its entries, and the checkpoint that a restore starts from."""
