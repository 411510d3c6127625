"""What a job brings beside its program: inspection of uploads, rules for libraries, and their copies on this host."""
